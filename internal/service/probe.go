package service

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"

	"github.com/sluice-proxy/sluice/internal/config"
)

// maxProbeHead bounds the response head of a probe.
const maxProbeHead = 64 << 10

// errStatus is a probe answered with a status other than 2xx.
var errStatus = errors.New("health check answered with status")

// probe asks one backend whether it is healthy: GET base path + check path, with the backend's own authority. It
// follows no redirect, uses no proxy and opens a connection each time, since accepting one is part of the question. Of a
// tcp backend it is the whole question.
type probe struct {
	client    http.Client
	transport *http.Transport
	check     *Check
	url       string
}

func newProbe(c *Check) *probe {
	key := &c.spec.pool
	dial := c.dial
	if dial == nil {
		dial = dialKernel
	}
	t := &http.Transport{
		DialContext:            func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx, key.addr) },
		DisableKeepAlives:      true,
		DisableCompression:     true,
		MaxResponseHeaderBytes: maxProbeHead,
	}
	t.Protocols = key.protocols()
	if secureConfig := c.pool.offering(key.transport.ALPN.Names()...); secureConfig != nil {
		t.DialTLSContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			nc, err := dial(ctx, key.addr)
			if err != nil {
				return nil, err
			}
			secure := tls.Client(nc, secureConfig())
			if err := secure.HandshakeContext(ctx); err != nil {
				_ = nc.Close()
				return nil, err
			}
			return secure, nil
		}
	}
	return &probe{
		client: http.Client{
			Transport:     t,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		transport: t, check: c, url: key.urlScheme() + "://backend" + c.spec.base + c.spec.Path,
	}
}

// protocols are those that the backend is spoken with.
func (k *poolKey) protocols() *http.Protocols {
	p := new(http.Protocols)
	p.SetHTTP1(k.scheme != "h2c" && k.transport.ALPN != config.HTTP2)
	p.SetHTTP2(k.scheme == "https" && k.transport.ALPN.Has(config.HTTP2))
	p.SetUnencryptedHTTP2(k.scheme == "h2c")
	return p
}

// urlScheme is the scheme that net/http knows.
func (k *poolKey) urlScheme() string {
	if k.scheme == "h2c" {
		return "http"
	}
	return k.scheme
}

// dialKernel opens a connection on the kernel's network.
func dialKernel(ctx context.Context, addr string) (net.Conn, error) {
	var d net.Dialer
	if path, ok := strings.CutPrefix(addr, "unix:"); ok {
		return d.DialContext(ctx, "unix", path)
	}
	return d.DialContext(ctx, "tcp", addr)
}

// once probes. nil means that the backend is healthy.
func (p *probe) once(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, p.check.spec.Timeout)
	defer cancel()
	if p.check.spec.pool.scheme == "tcp" {
		return p.connect(ctx)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url, http.NoBody)
	if err != nil {
		return fmt.Errorf("making the health check request: %w", err)
	}
	req.Host = p.check.spec.host
	req.Header.Set("User-Agent", "sluice-health-check")
	res, err := p.client.Do(req)
	if err != nil {
		return probeError(err)
	}
	_ = res.Body.Close() // the status decides; the body is not waited for
	if res.StatusCode < 200 || res.StatusCode > 299 {
		return fmt.Errorf("%w %d", errStatus, res.StatusCode)
	}
	return nil
}

// connect is the probe of a backend that nothing is known of but that it accepts connections.
func (p *probe) connect(ctx context.Context) error {
	c, err := p.transport.DialContext(ctx, "tcp", p.check.spec.pool.addr)
	if err != nil {
		return fmt.Errorf("health check: %w", err)
	}
	return c.Close()
}

func (p *probe) close() { p.transport.CloseIdleConnections() }

// probeError is the failure without the URL around it, which names a host that does not exist.
func probeError(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		if u.Timeout() {
			return fmt.Errorf("health check timed out: %w", u.Err)
		}
		return fmt.Errorf("health check: %w", u.Err)
	}
	return err
}
