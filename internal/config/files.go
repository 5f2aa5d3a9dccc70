package config

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"github.com/sluice-proxy/sluice/internal/acl"
)

// maxPEM bounds the certificate, key and CA files that are read.
const maxPEM = 4 << 20

// LoadHere is Load for this machine: what the configuration needs of it is checked too, by CheckFiles. Of a faulty
// configuration that is done as far as it could be decoded, so that one run finds everything.
func LoadHere(sources []Source) (*Config, acl.Diagnostics) {
	cfg, diags := Loader{}.decode(sources, nil)
	for _, d := range (Loader{}).CheckFiles(cfg, time.Now()) {
		diags.Add(d)
	}
	diags.Sort()
	if diags.HasErrors() {
		return nil, diags
	}
	return cfg, diags
}

// CheckFiles checks what a valid configuration needs of the machine: certificate, key and CA files that can be read,
// parse and fit together, and the variable with the management token. Load does not do this, since a configuration
// may be judged on another machine; validate, run and reload do. A certificate outside its validity at now is a
// warning: it may be what is being renewed.
func (l Loader) CheckFiles(cfg *Config, now time.Time) acl.Diagnostics {
	c := &fileCheck{d: &decoder{}, now: now}
	for _, name := range sortedKeys(cfg.Entrypoints) {
		if t := cfg.Entrypoints[name].TLS; t != nil {
			c.tls(t, "entrypoints "+strconv.Quote(name))
		}
		if g := cfg.Entrypoints[name].Egress; g != nil {
			c.roots(g.IdentityCAFile, g.identityPos, "identity_ca_file of entrypoints "+strconv.Quote(name))
			c.mutual(g.controlFiles, "control of entrypoints "+strconv.Quote(name))
			if g.OriginCAFile != "" {
				c.roots(g.OriginCAFile, g.originPos, "origin_ca_file of entrypoints "+strconv.Quote(name))
			}
		}
	}
	for _, name := range sortedKeys(cfg.Services) {
		lb, owner := cfg.Services[name].LoadBalancer, "services "+strconv.Quote(name)
		if lb.Transport.CAFile != "" {
			c.roots(lb.Transport.CAFile, lb.CAPos, "ca_file of "+owner)
		}
		if lb.Transport.CertFile != "" {
			c.pair(lb.ClientPos, owner)
		}
		if a := cfg.Services[name].Actor; a != nil {
			c.mutual(a.controlFiles, "control of "+owner)
			c.mutual(a.workerFiles, "workers of "+owner)
		}
	}
	if m := cfg.Management; m.Enabled {
		if m.TLS != nil {
			c.tls(&m.TLS.TLS, "management")
		}
		lookup := l.LookupEnv
		if lookup == nil {
			lookup = os.LookupEnv
		}
		if m.TokenEnv != "" {
			if v, ok := lookup(m.TokenEnv); !ok || v == "" {
				c.d.fail(CodeEnv, m.TokenPos, "management needs the environment variable %s, which is not set", m.TokenEnv).Hint = `set it to the bearer token, or write auth_token_env = "" to serve without one`
			}
		}
	}
	return c.d.findings()
}

type fileCheck struct {
	d   *decoder
	now time.Time
}

// mutual checks the files of one side of mutual TLS.
func (c *fileCheck) mutual(files [2]text, owner string) {
	own, ca := files[0], files[1]
	what := "credential_file of " + owner
	if data, ok := c.read(own.s, own.at, what); ok {
		certs := c.certificates(data, own.at, what)
		_, err := tls.X509KeyPair(data, data)
		switch {
		case !c.key(data, own.at, what):
		case len(certs) == 0: // has been reported
		case err != nil:
			c.bad(own.at, "the key in %s is not that of its certificate, or cannot be parsed", what)
		default:
			c.dates(certs[0], own.at, owner)
		}
	}
	c.roots(ca.s, ca.at, "ca_file of "+owner)
}

// tls checks every file of a tls block.
func (c *fileCheck) tls(t *TLS, owner string) {
	for _, p := range t.Pairs() {
		c.pair(p, owner)
	}
	if t.ClientCAFile != "" {
		c.roots(t.ClientCAFile, t.ClientCAPos, "client_ca_file of "+owner)
	}
	if t.ACME != nil && t.ACME.CAFile != "" {
		c.roots(t.ACME.CAFile, t.ACME.CAPos, "acme_ca_file of "+owner)
	}
}

// pair checks a certificate chain and its key. Nothing of the key's content reaches a message.
func (c *fileCheck) pair(t KeyPair, owner string) {
	chain, okChain := c.read(t.CertFile, t.CertPos, "cert_file of "+owner)
	key, okKey := c.read(t.KeyFile, t.KeyPos, "key_file of "+owner)
	var leaf *x509.Certificate
	if okChain {
		certs := c.certificates(chain, t.CertPos, "cert_file of "+owner)
		if okChain = len(certs) > 0; okChain {
			leaf = certs[0]
		}
	}
	okKey = okKey && c.key(key, t.KeyPos, "key_file of "+owner)
	if !okChain || !okKey {
		return
	}
	if _, err := tls.X509KeyPair(chain, key); err != nil {
		c.bad(t.KeyPos, "key_file of %s is not the key of the certificate in cert_file, or cannot be parsed", owner)
		return
	}
	c.dates(leaf, t.CertPos, owner)
}

// dates warns of a certificate that is not valid now.
func (c *fileCheck) dates(leaf *x509.Certificate, at acl.Span, owner string) {
	const day = "2006-01-02"
	switch {
	case c.now.After(leaf.NotAfter):
		c.d.warn(WarnExpired, at, "the certificate of %s expired on %s", owner, leaf.NotAfter.Format(day))
	case c.now.Before(leaf.NotBefore):
		c.d.warn(WarnExpired, at, "the certificate of %s is not valid before %s", owner, leaf.NotBefore.Format(day))
	}
}

func (c *fileCheck) roots(path string, at acl.Span, what string) {
	if data, ok := c.read(path, at, what); ok {
		c.certificates(data, at, what)
	}
}

// certificates parses every certificate of a PEM file and reports when there is none or one is broken.
func (c *fileCheck) certificates(data []byte, at acl.Span, what string) []*x509.Certificate {
	var out []*x509.Certificate
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			c.bad(at, "certificate %d in %s cannot be parsed", len(out)+1, what)
			return nil
		}
		out = append(out, cert)
	}
	if len(out) == 0 {
		diag := c.bad(at, "%s holds no certificate in PEM form", what)
		if _, err := x509.ParseCertificate(data); err == nil {
			diag.Hint = "it is in DER form, which `openssl x509 -inform der` turns into PEM"
		}
	}
	return out
}

// key looks for a private key that can be used, and reports when there is none.
func (c *fileCheck) key(data []byte, at acl.Span, what string) bool {
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		switch block.Type {
		case "PRIVATE KEY", "RSA PRIVATE KEY", "EC PRIVATE KEY":
			if block.Headers["DEK-Info"] == "" { // RFC 1421 section 4.6.1.3
				return true
			}
		case "ENCRYPTED PRIVATE KEY":
		default:
			continue
		}
		c.bad(at, "%s holds a private key that is encrypted", what).Hint = "nobody is there to type a passphrase: `openssl pkey` decrypts it; keep the file readable by the gateway alone"
		return false
	}
	c.bad(at, "%s holds no private key in PEM form", what)
	return false
}

// bad reports a file that cannot be used. Its path is shown: that is what has to be looked at.
func (c *fileCheck) bad(at acl.Span, format string, args ...any) *acl.Diagnostic {
	diag := c.d.fail(CodeFile, at, format, args...)
	diag.ShowValue = true
	return diag
}

// read reads a bounded regular file.
func (c *fileCheck) read(path string, at acl.Span, what string) ([]byte, bool) {
	if path == "" { // it could not be decoded, which has been reported
		return nil, false
	}
	data, err := readBounded(path, maxPEM)
	if err != nil {
		c.bad(at, "%s: %s", what, readError(err))
		return nil, false
	}
	return data, true
}

// readBounded reads a regular file of at most limit bytes: a pipe or device would block or never end.
func readBounded(path string, limit int) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errNotRegular
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, int64(limit)+1))
	if err == nil && len(data) > limit {
		err = fmt.Errorf("%w: more than %d bytes", errTooLarge, limit)
	}
	return data, err
}
