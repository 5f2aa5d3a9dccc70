package peers_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
)

// Foreign servers are reached over HTTP/2 without TLS: many requests at once, through more than one life of a connection
// (nginx ends one after 1000 requests), with small and large bodies.
func TestHTTP2Upstreams(t *testing.T) {
	for name, start := range map[string]func(t *testing.T) *peer{
		"nginx":   func(t *testing.T) *peer { return startNginxAs(t, "http2") },
		"apache2": func(t *testing.T) *peer { return startApacheAs(t, "h2c http/1.1") },
		"node":    func(t *testing.T) *peer { return startNodeWith(t, "echo2.mjs") },
	} {
		t.Run(name, func(t *testing.T) {
			p := start(t)
			s := serve(t, strings.Replace(p.url, "http://", "h2c://", 1))
			tr := &http.Transport{MaxIdleConnsPerHost: 20}
			t.Cleanup(tr.CloseIdleConnections)
			c := &http.Client{Transport: tr}
			var all sync.WaitGroup
			for i := range 20 {
				all.Go(func() {
					for n := range 130 {
						size := 10
						if n%30 == 7 {
							size = 300 << 10
						}
						if err := askHTTP2(c, s.clear, fmt.Sprintf("/%d/%d?q=1", i, n), size); err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
			all.Wait()
			res, err := c.Head("http://" + s.clear + "/")
			if err != nil || res.StatusCode != 200 {
				t.Errorf("%v, %v", res, err)
			}
		})
	}
}

// askHTTP2 makes a request whose body is echoed.
func askHTTP2(c *http.Client, address, uri string, size int) error {
	sent := strings.Repeat("x", size)
	res, err := c.Post("http://"+address+uri, "text/plain", strings.NewReader(sent))
	if err != nil {
		return err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	var saw echoed
	if err == nil {
		err = json.Unmarshal(body, &saw)
	}
	if want := (echoed{"POST", uri, address, sent}); err != nil || res.StatusCode != 200 || saw != want {
		return fmt.Errorf("%s: %d, %v, %.300s", uri, res.StatusCode, err, body)
	}
	return nil
}
