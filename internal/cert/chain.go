package cert

import (
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/certmagic"
)

// checkChain reports why a chain, PEM with the leaf first, cannot serve what was asked for; nil it can. Whether clients
// trust it is between them and the authority.
func checkChain(chain []byte, csr *x509.CertificateRequest) error {
	var all []*x509.Certificate
	for block, rest := pem.Decode(chain); block != nil; block, rest = pem.Decode(rest) {
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return fmt.Errorf("certificate %d of the chain: %w", len(all)+1, err)
		}
		all = append(all, c)
	}
	if len(all) == 0 {
		return errors.New("the answer holds no certificate")
	}
	leaf := all[0]
	if key, ok := csr.PublicKey.(interface{ Equal(crypto.PublicKey) bool }); !ok || !key.Equal(leaf.PublicKey) {
		return errors.New("it is for another key")
	}
	for _, name := range csr.DNSNames {
		if !certifies(leaf, name) {
			return fmt.Errorf("it is not for %s", name)
		}
	}
	if !time.Now().Before(leaf.NotAfter) {
		return fmt.Errorf("it ended at %v", leaf.NotAfter)
	}
	return nil
}

// certifies reports whether a name, which may be a wildcard, stands in a certificate.
func certifies(leaf *x509.Certificate, name string) bool {
	return slices.ContainsFunc(leaf.DNSNames, func(have string) bool { return strings.EqualFold(have, name) })
}

// clean removes what is in storage for a name and cannot be served, so that it is asked for anew. An ended certificate is
// still served. What is there may be half of what another instance is writing: it is looked at again under the lock of
// the name.
func (m *manager) clean(ctx context.Context, name string) error {
	reason, err := m.unusable(ctx, name)
	if err != nil || reason == nil {
		return err
	}
	lock := "issue_cert_" + name // the library's
	if err := m.issuer.storage.Lock(ctx, lock); err != nil {
		return fmt.Errorf("waiting for the lock of %s: %w", name, err)
	}
	defer func() { _ = m.issuer.storage.Unlock(context.WithoutCancel(ctx), lock) }()
	if reason, err = m.unusable(ctx, name); err != nil || reason == nil {
		return err
	}
	m.log.Error("the certificate in storage is of no use and is ordered anew", "name", name, "error", reason)
	for _, key := range m.places(name) {
		if err := m.issuer.storage.Delete(ctx, key); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("removing %s: %w", key, err)
		}
	}
	return nil
}

// places are where the certificate of a name, its key and its description are in storage.
func (m *manager) places(name string) [3]string {
	k := certmagic.StorageKeys
	return [3]string{k.SiteCert(m.issuer.key, name), k.SitePrivateKey(m.issuer.key, name), k.SiteMeta(m.issuer.key, name)}
}

// unusable tells what is wrong with what storage holds for a name; nil nothing is, or something is missing, which the
// library sees for itself. The error is storage that cannot be read: what is in it may be good.
func (m *manager) unusable(ctx context.Context, name string) (reason, err error) {
	var texts [3][]byte
	for i, key := range m.places(name) {
		if texts[i], err = m.issuer.storage.Load(ctx, key); errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		} else if err != nil {
			return nil, fmt.Errorf("reading %s: %w", key, err)
		}
	}
	pair, err := tls.X509KeyPair(texts[0], texts[1])
	if err != nil { // its text shows no byte of the key
		return err, nil
	}
	if !certifies(pair.Leaf, name) {
		return fmt.Errorf("it is not for %s", name), nil
	}
	var meta certmagic.CertificateResource
	if json.Unmarshal(texts[2], &meta) != nil {
		return errors.New("its description is not readable"), nil
	}
	return nil, nil
}
