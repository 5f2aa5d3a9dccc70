package cert

import (
	"context"
	"io"
	"net/http"
)

const (
	// maxAnswer bounds the answer of an authority or of a DNS service in bytes, decompressed. Chains and directories have a
	// few thousand.
	maxAnswer = 1 << 20
	// maxHeader bounds its header in bytes.
	maxHeader = 64 << 10
)

// bounded is a transport to a service that is not trusted to stop: a longer answer is an error.
type bounded struct {
	*http.Transport
	owner context.Context // ends all requests
}

// newBounded makes a transport with the defaults of net/http.
func newBounded(owner context.Context) *bounded {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.ResponseHeaderTimeout, t.MaxResponseHeaderBytes = callTime, maxHeader
	return &bounded{t, owner}
}

// newServiceClient calls a DNS service. It is called seldom, and keeps no connection.
func newServiceClient() *http.Client {
	t := newBounded(context.Background())
	t.DisableKeepAlives = true
	return &http.Client{Transport: t, Timeout: callTime}
}

// RoundTrip sends a request.
func (b *bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(r.Context())
	stop := context.AfterFunc(b.owner, cancel)
	end := func() { stop(); cancel() }
	resp, err := b.Transport.RoundTrip(r.WithContext(ctx))
	if err != nil {
		end()
		return nil, err
	}
	resp.Body = body{http.MaxBytesReader(nil, resp.Body, maxAnswer), end}
	return resp, nil
}

// body ends what belongs to a request when it is closed.
type body struct {
	io.ReadCloser
	end func()
}

// Close closes the body.
func (b body) Close() error {
	defer b.end()
	return b.ReadCloser.Close()
}
