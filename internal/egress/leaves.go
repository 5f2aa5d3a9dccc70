package egress

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/internal/cert"
)

// Bounds of the certificates that one actor is shown in the place of origins.
const (
	maxLeaves   = 256 // kept; the one that ends first makes room
	maxMinting  = 8   // asked for at a time
	mintWait    = 5 * time.Second
	leafReserve = 2 * time.Minute // what is left of one when it is asked for again
)

// errLeaves is an actor that wants more certificates at a time than it may.
var errLeaves = errors.New("too many certificates are being minted for the actor")

// leafKey is the key of all leaves of a process, and the request that proves that we have it.
type leafKey struct {
	key     *ecdsa.PrivateKey
	request []byte
}

func newLeafKey() (leafKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return leafKey{}, err
	}
	request, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	return leafKey{key: key, request: request}, err
}

// leaves are the certificates of one actor. It lives as long as the actor has tunnels. Safe for concurrent use.
type leaves struct {
	key  leafKey
	from cert.Minter

	minting chan struct{} // the actor's limit

	mu   sync.Mutex // guards the rest
	kept map[Host]*leaf
}

// leaf is a certificate, or the way to it.
type leaf struct {
	done chan struct{} // closed once the rest is there, which then never changes
	cert *tls.Certificate
	err  error
	ends time.Time // when it is not to be used any more; zero while it is being minted
}

// get returns a certificate for a name. Of those who ask at a time one has it minted.
func (l *leaves) get(ctx context.Context, name Host) (*tls.Certificate, error) {
	e, err := l.entry(name)
	if err != nil {
		return nil, err
	}
	select {
	case <-e.done:
		return e.cert, e.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// entry finds what is kept and good, or has it minted.
func (l *leaves) entry(name Host) (*leaf, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if e := l.kept[name]; e != nil && (e.ends.IsZero() || now.Before(e.ends)) {
		return e, nil
	}
	select {
	case l.minting <- struct{}{}:
	default:
		return nil, errLeaves
	}
	if len(l.kept) >= maxLeaves && l.kept[name] == nil {
		l.evict()
	}
	e := &leaf{done: make(chan struct{})}
	l.kept[name] = e
	go l.mint(name, e) // ends in mintWait; who waits for it are the callers
	return e, nil
}

// evict forgets the leaf that ends first. Fewer are being minted than kept, so there is one.
func (l *leaves) evict() {
	var first Host
	for name, e := range l.kept {
		if !e.ends.IsZero() && (first == Host{} || e.ends.Before(l.kept[first].ends)) {
			first = name
		}
	}
	delete(l.kept, first)
}

// mint fills a leaf in. A failure is not kept.
func (l *leaves) mint(name Host, e *leaf) {
	ctx, cancel := context.WithTimeout(context.Background(), mintWait)
	defer cancel()
	chain, err := l.from.Mint(ctx, l.key.request, name.Name(), name.Addr())
	ends := time.Now()
	if err == nil {
		ends, err = l.check(chain)
	}
	l.mu.Lock()
	<-l.minting
	e.ends = ends
	if err != nil && l.kept[name] == e {
		delete(l.kept, name)
	}
	l.mu.Unlock()
	if err != nil {
		e.err = fmt.Errorf("a certificate for %s: %w", name, err)
	} else {
		e.cert = &tls.Certificate{Certificate: chain, PrivateKey: l.key.key}
	}
	close(e.done)
}

// check reads what was minted, and until when to use it.
func (l *leaves) check(chain [][]byte) (time.Time, error) {
	if len(chain) == 0 {
		return time.Time{}, errors.New("the minter has answered without one")
	}
	c, err := x509.ParseCertificate(chain[0])
	if err != nil {
		return time.Time{}, err
	}
	if !l.key.key.PublicKey.Equal(c.PublicKey) {
		return time.Time{}, errors.New("it is for another key")
	}
	reserve := min(leafReserve, time.Until(c.NotAfter)/2)
	return c.NotAfter.Add(-reserve), nil
}
