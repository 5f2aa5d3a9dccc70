package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"embed"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// sources are the C tools: an upstream and a load client.
//
//go:embed c/*.c c/*.h
var sources embed.FS

// wrkScript makes wrk print the line that our own client prints.
const wrkScript = `function done(summary, latency, requests)
	local e = summary.errors
	local secs = summary.duration / 1e6
	io.write(string.format('{"n":%d,"secs":%.4f,"per_sec":%.1f,"p50_us":%.1f,"p99_us":%.1f,"max_us":%.1f,"errors":%d}\n',
		summary.requests, secs, summary.requests / secs, latency:percentile(50), latency:percentile(99), latency.max,
		e.connect + e.read + e.write + e.status + e.timeout))
end
`

// toolkit holds the paths of what the bench itself runs.
type toolkit struct {
	upstream, load  string
	echo, handshake string
	h2load          string // empty when it is not there
	call            string // file with the message of a unary call
	wrk, wrkScript  string // wrk is empty when it is not there
}

// buildTools compiles the C tools into the cache, in a directory named by their sources, so
// that they are built once for each change.
func buildTools(ctx context.Context, cache string) (toolkit, error) {
	names, err := fs.Glob(sources, "c/*")
	if err != nil {
		return toolkit{}, fmt.Errorf("listing the tools: %w", err)
	}
	sum := sha256.New()
	text := map[string][]byte{}
	for _, n := range names {
		b, err := sources.ReadFile(n)
		if err != nil {
			return toolkit{}, fmt.Errorf("reading %s: %w", n, err)
		}
		text[filepath.Base(n)] = b
		fmt.Fprintf(sum, "%s %d\n", n, len(b))
		sum.Write(b)
	}
	dir := filepath.Join(cache, "tools-"+hex.EncodeToString(sum.Sum(nil))[:12])
	kit := toolkit{
		upstream: filepath.Join(dir, "upstream"), load: filepath.Join(dir, "load"), wrkScript: filepath.Join(dir, "wrk.lua"),
		echo: filepath.Join(dir, "echo"), handshake: filepath.Join(dir, "handshake"),
	}
	if p, err := exec.LookPath("wrk"); err == nil {
		kit.wrk = p
	}
	if p, err := exec.LookPath("h2load"); err == nil {
		kit.h2load = p
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return toolkit{}, fmt.Errorf("directory of the tools: %w", err)
	}
	for n, b := range text {
		if err := os.WriteFile(filepath.Join(dir, n), b, 0o644); err != nil {
			return toolkit{}, fmt.Errorf("source of a tool: %w", err)
		}
	}
	if err := os.WriteFile(kit.wrkScript, []byte(wrkScript), 0o644); err != nil {
		return toolkit{}, fmt.Errorf("script of wrk: %w", err)
	}
	if kit.call, err = writeCall(dir); err != nil {
		return toolkit{}, err
	}
	for _, out := range []string{kit.upstream, kit.load, kit.echo, kit.handshake} {
		if _, err := os.Stat(out); err == nil {
			continue
		}
		made := out + ".new" // renamed, so that a broken compilation is never taken for a tool
		cc := exec.CommandContext(ctx, "gcc", "-O2", "-Wall", "-Wextra", "-o", made, out+".c", "-lssl", "-lcrypto", "-lpthread")
		if msg, err := cc.CombinedOutput(); err != nil {
			return toolkit{}, fmt.Errorf("compiling %s: %w\n%s", filepath.Base(out), err, msg)
		}
		if err := os.Rename(made, out); err != nil {
			return toolkit{}, fmt.Errorf("keeping a compiled tool: %w", err)
		}
	}
	return kit, nil
}

// certificate is the pair of files that every proxy serves TLS with.
type certificate struct {
	cert, key, pair string
}

// makeCertificate writes a self-signed ECDSA P-256 certificate for the loopback address.
func makeCertificate(dir string) (certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return certificate{}, fmt.Errorf("making a key: %w", err)
	}
	now := time.Now()
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()), Subject: pkix.Name{CommonName: "bench.example"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(30 * 24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames: []string{"bench.example", "localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		return certificate{}, fmt.Errorf("making a certificate: %w", err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return certificate{}, fmt.Errorf("encoding a key: %w", err)
	}
	certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	keyPEM := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})
	c := certificate{cert: filepath.Join(dir, "cert.pem"), key: filepath.Join(dir, "key.pem"), pair: filepath.Join(dir, "pair.pem")}
	for path, b := range map[string][]byte{c.cert: certPEM, c.key: keyPEM, c.pair: append(certPEM[:len(certPEM):len(certPEM)], keyPEM...)} {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			return certificate{}, fmt.Errorf("writing a certificate: %w", err)
		}
	}
	return c, nil
}
