package service

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/conn"
)

// maxProbeHead bounds the response head of a probe.
const maxProbeHead = 64 << 10

// errStatus is a probe answered with a status other than 2xx.
var errStatus = errors.New("health check answered with status")

// probe asks one backend whether it is healthy: GET base path + check path, or the gRPC health service, with the backend's
// own authority. It follows no redirect, uses no proxy and opens a connection each time, since accepting one is part of the
// question. Of a tcp backend it is the whole question; a udp backend is knocked at.
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
	path, offer := c.spec.Path, key.transport.ALPN.Names()
	if t.Protocols = key.protocols(); c.spec.GRPC {
		path, offer, t.Protocols = healthMethod, []string{"h2"}, overHTTP2
	}
	if secureConfig := c.pool.offering(offer...); secureConfig != nil {
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
		transport: t, check: c, url: key.urlScheme() + "://backend" + c.spec.base + path,
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
	switch s := p.check.spec.pool.scheme; {
	case s == "tcp" || s == "tls":
		return p.connect(ctx)
	case s == "udp":
		return p.knock(ctx)
	case p.check.spec.GRPC:
		return p.call(ctx)
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

// connect is the probe of a backend that nothing is known of but that it accepts connections, with TLS if it is a tls one.
func (p *probe) connect(ctx context.Context) error {
	key := &p.check.spec.pool
	c, err := p.transport.DialContext(ctx, "tcp", key.addr)
	if err != nil {
		return fmt.Errorf("health check: %w", err)
	}
	defer func() { _ = c.Close() }()
	if v := key.transport.SendProxy; v > 0 { // a backend that insists on it need not complain of a connection without
		head, err := conn.ProxyHeader(v, &conn.Info{})
		if err == nil {
			_, err = c.Write(head)
		}
		if err != nil {
			return fmt.Errorf("health check: %w", err)
		}
	}
	if secure := p.check.pool.offering(); secure != nil {
		if err := tls.Client(c, secure()).HandshakeContext(ctx); err != nil {
			return fmt.Errorf("health check: %w", err)
		}
	}
	return nil
}

// knockTime is how long a network may take to say that nobody is there.
const knockTime = time.Second

// knock is the probe of a backend of datagrams: it sends one without content. No answer is owed to that, so silence is
// health, and what the network says instead, that nobody listens or that there is no way there, is not.
func (p *probe) knock(ctx context.Context) error {
	var d net.Dialer
	c, err := d.DialContext(ctx, "udp", p.check.spec.pool.addr)
	if err != nil {
		return fmt.Errorf("health check: %w", err)
	}
	defer func() { _ = c.Close() }()
	end := time.Now().Add(knockTime)
	if by, ok := ctx.Deadline(); ok && by.Before(end) {
		end = by
	}
	_ = c.SetReadDeadline(end)
	stop := context.AfterFunc(ctx, func() { _ = c.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	if _, err = c.Write(nil); err == nil {
		_, err = c.Read(make([]byte, 1))
	}
	if err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	return fmt.Errorf("health check: %w", err)
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
