package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// readyTime is how long a proxy may take until it answers.
const readyTime = 20 * time.Second

// grpcOffset is the place of the upstream of unary calls in the first block of ports; c/upstream.c
// has the first three.
const grpcOffset = 3

// portsEach is how many ports a proxy gets; the upstream has the first block.
const portsEach = 10

var anyCertificate = &tls.Config{InsecureSkipVerify: true} // loopback, a certificate of our own making

// running is a peer that has been started.
type running struct {
	peer
	*process
	site    site
	version string
	notes   []string // what its forwarding lacks
}

// truncateLog empties the access log, so that a long run does not fill the disk.
func (p *running) truncateLog() {
	_ = os.Truncate(p.site.Log, 0) // not every peer writes one
}

// siteOf gives a peer its directory and ports.
func (b *bench) siteOf(index int, name string) site {
	base := b.basePort + portsEach*(index+1)
	dir := filepath.Join(b.cache, "run", name)
	return site{
		Dir: dir, Plain: base, TLS: base + 1, Admin: base + 2, TCP: base + 3, UDP: base + 4,
		Upstream: b.basePort, EchoTCP: b.basePort + 1, EchoUDP: b.basePort + 2, GRPC: b.basePort + grpcOffset,
		Cert: b.cert.cert, Key: b.cert.key, CertPair: b.cert.pair,
		Log: filepath.Join(dir, "access.log"), Root: os.Geteuid() == 0,
	}
}

// free checks that nothing listens on the ports yet.
func free(ports ...int) error {
	for _, p := range ports {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", p))
		if err != nil {
			return fmt.Errorf("port %d is taken (choose others with -base-port): %w", p, err)
		}
		l.Close()
	}
	return nil
}

// startPeer starts a peer and waits until it forwards. The caller must stop it.
func (b *bench) startPeer(ctx context.Context, c candidate) (*running, error) {
	s := b.siteOf(c.index, c.name)
	if err := free(s.Plain, s.TLS, s.Admin, s.TCP, s.UDP); err != nil {
		return nil, err
	}
	cmd, err := c.command(c.binary, s)
	if err != nil {
		return nil, err
	}
	out, err := outputFile(filepath.Join(s.Dir, "output.log"))
	if err != nil {
		return nil, err
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	p := &running{peer: c.peer, site: s, version: c.versionText}
	if p.process, err = launch(cmd); err != nil {
		return nil, err
	}
	if err := p.await(ctx); err != nil {
		p.stop()
		return nil, fmt.Errorf("%s: %w (its output is in %s)", p.name, err, out.Name())
	}
	return p, nil
}

// await waits until the proxy forwards on both ports.
func (p *running) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTime)
	defer cancel()
	every := time.NewTicker(50 * time.Millisecond)
	defer every.Stop()
	for {
		_, err := fetch(ctx, p.url(false, "/"), nil)
		if err == nil {
			_, err = fetch(ctx, p.url(true, "/"), nil)
		}
		if err == nil {
			return nil
		}
		if gone := p.ended(); gone != nil {
			return gone
		}
		select {
		case <-every.C:
		case <-ctx.Done():
			return fmt.Errorf("it does not get ready: %w", err)
		}
	}
}

func (p *running) url(secure bool, path string) string {
	if secure {
		return fmt.Sprintf("https://127.0.0.1:%d%s", p.site.TLS, path)
	}
	return fmt.Sprintf("http://127.0.0.1:%d%s", p.site.Plain, path)
}

// check makes sure that the proxy does the work that it is measured for. What a proxy does
// not forward as the others do is noted, not refused.
func (p *running) check(ctx context.Context) error {
	for _, c := range []struct {
		path string
		body []byte
		want int
	}{
		{"/", nil, 42}, {"/big", nil, 102400}, {"/sse", nil, sseBytes}, {"/", bytes.Repeat([]byte{'1'}, 1024), 42},
	} {
		got, err := fetch(ctx, p.url(false, c.path), c.body)
		if err != nil {
			return err
		}
		if len(got) != c.want {
			return fmt.Errorf("%s: %d bytes came, want %d", c.path, len(got), c.want)
		}
	}
	head, err := fetch(ctx, p.url(true, "/echo"), nil)
	if err != nil {
		return err
	}
	p.notes = missing(string(head))
	if !slices.Contains(p.lacks, "gRPC") {
		if err := call(ctx, p.site.TLS); err != nil {
			p.notes = append(p.notes, err.Error())
		}
	}
	if p.scrape != "" {
		if _, err := fetch(ctx, fmt.Sprintf("http://127.0.0.1:%d%s", p.site.Admin, p.scrape), nil); err != nil {
			return fmt.Errorf("metrics: %w", err)
		}
	}
	return nil
}

// missing tells what a request head, as the upstream got it over TLS, should have held.
func missing(head string) []string {
	var notes []string
	low := strings.ToLower(head)
	for _, want := range []struct{ line, note string }{
		{"\r\nhost: bench.example\r\n", "does not forward Host"},
		{"\r\nx-forwarded-for: ", "no X-Forwarded-For"},
		{"\r\nx-forwarded-proto: https\r\n", "no X-Forwarded-Proto"},
	} {
		if !strings.Contains(low, want.line) {
			notes = append(notes, want.note)
		}
	}
	return notes
}

// startUpstream starts the shared backend; it ends with its input.
func (b *bench) startUpstream(ctx context.Context) error {
	if err := free(b.basePort, b.basePort+1, b.basePort+2, b.basePort+grpcOffset); err != nil {
		return err
	}
	l, err := startLoad(exec.Command(b.kit.upstream, fmt.Sprint(b.basePort)))
	if err != nil {
		return err
	}
	if _, err := l.next(ctx, "ready", readyTime); err != nil {
		l.finish()
		return fmt.Errorf("upstream: %w", err)
	}
	b.upstream = l
	return nil
}

// candidate is a peer that was found on this machine.
type candidate struct {
	peer
	index       int
	binary      string
	versionText string
}

// findPeers looks for the wanted peers; one that is missing is reported and left out.
func (b *bench) findPeers(ctx context.Context, names []string) ([]candidate, error) {
	for _, n := range names {
		known := false
		for _, p := range peers {
			known = known || p.name == n
		}
		if !known {
			return nil, fmt.Errorf("no proxy %q", n)
		}
	}
	var found []candidate
	for i, p := range peers {
		if len(names) > 0 && !slices.Contains(names, p.name) {
			continue
		}
		binary, err := p.find(place{cache: b.cache, sluice: b.sluice})
		if err != nil {
			b.progress("without %s: %v", p.name, err)
			continue
		}
		found = append(found, candidate{peer: p, index: i, binary: binary, versionText: versionOf(ctx, binary, p.version)})
	}
	if len(found) == 0 {
		return nil, errors.New("no proxy to measure")
	}
	return found, nil
}

func findSluice(pl place) (string, error) {
	if pl.sluice == "" {
		return "", errors.New("no binary given")
	}
	if _, err := os.Stat(pl.sluice); err != nil {
		return "", fmt.Errorf("our binary is not built: %w", err)
	}
	return pl.sluice, nil
}
