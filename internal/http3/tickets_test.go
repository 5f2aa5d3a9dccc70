package http3_test

import (
	"crypto/tls"
	"net/http"
	"testing"

	qhttp3 "github.com/quic-go/quic-go/http3"
)

// Session tickets are made and opened with the keys that the entrypoint's configuration has at the moment: they are replaced
// while it is in use, and a ticket of keys that are gone resumes nothing.
func TestTicketKeys(t *testing.T) {
	r := start(t, settings(echo))
	r.tls.Load().SetSessionTicketKeys([][32]byte{{1}})
	cache := tls.NewLRUClientSessionCache(4)
	resumes := func() bool {
		tr := &qhttp3.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true, ClientSessionCache: cache, ServerName: "gateway.test"}}
		defer func() { _ = tr.Close() }()
		resp, _ := do(t, &http.Client{Transport: tr}, request(t, "GET", "https://"+r.addr, nil))
		return resp.TLS.DidResume
	}
	if resumes() {
		t.Fatal("resumed a session that there was not")
	}
	if !resumes() {
		t.Error("a ticket does not resume its session")
	}
	r.tls.Load().SetSessionTicketKeys([][32]byte{{2}, {1}})
	if !resumes() {
		t.Error("a ticket of an earlier key does not resume its session")
	}
	r.tls.Load().SetSessionTicketKeys([][32]byte{{3}})
	if resumes() {
		t.Error("a ticket resumes its session although its key is gone")
	}
}
