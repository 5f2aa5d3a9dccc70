package cert

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/mholt/acmez/v3"
	"github.com/mholt/acmez/v3/acme"

	"github.com/sluice-proxy/sluice/internal/config"
)

const (
	// orderTime bounds one order, beside the wait for DNS.
	orderTime = 5 * time.Minute
	// callTime bounds one request to the authority.
	callTime = 30 * time.Second
)

// issuer orders certificates from one authority. It takes the place of the library's own, which would answer challenges
// at sockets that it binds itself.
type issuer struct {
	acme    *config.ACME
	m       *manager
	storage certmagic.Storage
	http    *http.Client
	solvers map[string]acmez.Solver
	key     string // names the authority in storage
}

func newIssuer(m *manager, storage certmagic.Storage, roots *x509.CertPool) (*issuer, error) {
	transport := newBounded(m.ctx)
	if roots != nil {
		transport.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	}
	i := &issuer{
		acme: &m.acme, m: m, storage: storage, http: &http.Client{Transport: transport, Timeout: callTime},
		solvers: map[string]acmez.Solver{}, key: m.acme.Directory,
	}
	if u, err := url.Parse(i.key); err == nil {
		i.key = u.Host + strings.ReplaceAll(strings.TrimRight(u.Path, "/"), "/", "-")
	}
	i.key = strings.ReplaceAll(i.key, ":", "-")
	pending := solver{&m.store.pending, storage}
	switch m.acme.Challenge {
	case config.ChallengeHTTP:
		i.solvers[acme.ChallengeTypeHTTP01] = pending
	case config.ChallengeALPN:
		i.solvers[acme.ChallengeTypeTLSALPN01] = pending
	case config.ChallengeDNS:
		s, err := newDNSSolver(m.acme.DNS)
		if err != nil {
			return nil, err
		}
		i.solvers[acme.ChallengeTypeDNS01] = s
	default:
		i.solvers[acme.ChallengeTypeHTTP01], i.solvers[acme.ChallengeTypeTLSALPN01] = pending, pending
	}
	return i, nil
}

// IssuerKey names the authority, as a part of a path.
func (i *issuer) IssuerKey() string { return i.key }

func (i *issuer) client() *acmez.Client {
	return &acmez.Client{Client: &acme.Client{Directory: i.acme.Directory, HTTPClient: i.http, UserAgent: "Sluice", PollTimeout: orderTime}}
}

// solversFor are the solvers for one order.
func (i *issuer) solversFor(account *acme.Account, names []string) (map[string]acmez.Solver, error) {
	thumbprint, err := account.Thumbprint()
	if err != nil {
		return nil, fmt.Errorf("thumbprint of the account: %w", err)
	}
	g := guarded{thumbprint: thumbprint}
	for _, name := range names {
		g.names = append(g.names, strings.TrimPrefix(name, "*."))
	}
	all := map[string]acmez.Solver{}
	for kind, s := range i.solvers {
		g.solver = s
		all[kind] = g
	}
	return all, nil
}

// GetRenewalInfo asks when the authority would like a certificate to be renewed (RFC 9773).
func (i *issuer) GetRenewalInfo(ctx context.Context, c certmagic.Certificate) (acme.RenewalInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	return i.client().GetRenewalInfo(ctx, c.Leaf)
}

// Issue orders the certificate of a request. An account that the authority does not know any more is replaced, once.
func (i *issuer) Issue(ctx context.Context, csr *x509.CertificateRequest) (*certmagic.IssuedCertificate, error) {
	bound := orderTime
	if i.acme.DNS != nil {
		bound += i.acme.DNS.Propagation
	}
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	client := i.client()
	account, err := i.account(ctx, client)
	if err != nil {
		return nil, err
	}
	chains, err := i.order(ctx, client, account, csr)
	var problem acme.Problem
	if errors.As(err, &problem) && problem.Type == acme.ProblemTypeAccountDoesNotExist {
		if err := i.storage.Delete(ctx, i.accountKey()); err != nil {
			return nil, fmt.Errorf("forgetting an account that the authority does not know: %w", err)
		}
		if account, err = i.account(ctx, client); err != nil {
			return nil, err
		}
		chains, err = i.order(ctx, client, account, csr)
	}
	if err != nil {
		return nil, err
	}
	if len(chains) == 0 {
		return nil, errors.New("the authority sent no certificate")
	}
	if err := checkChain(chains[0].ChainPEM, csr); err != nil {
		return nil, fmt.Errorf("the authority sent a certificate that is of no use: %w", err)
	}
	return &certmagic.IssuedCertificate{Certificate: chains[0].ChainPEM, Metadata: chains[0]}, nil
}

// order tells the authority which certificate the new one replaces, unless the authority objects.
func (i *issuer) order(ctx context.Context, client *acmez.Client, account acme.Account, csr *x509.CertificateRequest) ([]acme.Certificate, error) {
	params, err := acmez.OrderParametersFromCSR(account, csr)
	if err != nil {
		return nil, err
	}
	if client.ChallengeSolvers, err = i.solversFor(&account, csr.DNSNames); err != nil {
		return nil, err
	}
	if len(csr.DNSNames) == 1 {
		params.Replaces = i.m.own(csr.DNSNames[0])
	}
	chains, err := client.ObtainCertificate(ctx, params)
	var problem acme.Problem
	if params.Replaces != nil && errors.As(err, &problem) && problem.Type != acme.ProblemTypeAccountDoesNotExist &&
		strings.HasPrefix(err.Error(), "creating new order") {
		params.Replaces = nil
		chains, err = client.ObtainCertificate(ctx, params)
	}
	return chains, err
}

// storedAccount is an account at an authority as it is stored, with mode 0600.
type storedAccount struct {
	Account acme.Account `json:"account"`
	Key     string       `json:"key"` // PEM
}

// accountKey is the account's place in storage: one for each authority and contact.
func (i *issuer) accountKey() string {
	return fmt.Sprintf("accounts/%s/%x.json", i.key, sha256.Sum256([]byte(strings.ToLower(i.acme.Email))))
}

// account returns the account in storage, or registers one. Instances that share a storage come one after the other.
func (i *issuer) account(ctx context.Context, client *acmez.Client) (acme.Account, error) {
	if a, err := i.loadAccount(ctx); !errors.Is(err, fs.ErrNotExist) {
		return a, err
	}
	lock := "account_" + i.key
	if err := i.storage.Lock(ctx, lock); err != nil {
		return acme.Account{}, fmt.Errorf("waiting for the lock of the account: %w", err)
	}
	defer func() { _ = i.storage.Unlock(context.WithoutCancel(ctx), lock) }()
	if a, err := i.loadAccount(ctx); !errors.Is(err, fs.ErrNotExist) {
		return a, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return acme.Account{}, err
	}
	a := acme.Account{TermsOfServiceAgreed: true, PrivateKey: key}
	if i.acme.Email != "" {
		a.Contact = []string{"mailto:" + i.acme.Email}
	}
	if e := i.acme.EAB; e != nil {
		if err := a.SetExternalAccountBinding(ctx, client.Client, acme.EAB{KeyID: e.KeyID, MACKey: e.HMACKey.Reveal()}); err != nil {
			return a, fmt.Errorf("binding the account: %w", err)
		}
	}
	if a, err = client.NewAccount(ctx, a); err != nil {
		return a, fmt.Errorf("registering an account: %w", err)
	}
	a.PrivateKey = key
	keyPEM, err := certmagic.PEMEncodePrivateKey(key)
	if err != nil {
		return a, err
	}
	text, err := json.Marshal(storedAccount{a, string(keyPEM)})
	if err != nil {
		return a, err
	}
	if err := i.storage.Store(ctx, i.accountKey(), text); err != nil {
		return a, fmt.Errorf("storing the account: %w", err)
	}
	i.m.log.Info("account registered", "account", a.Location)
	return a, nil
}

func (i *issuer) loadAccount(ctx context.Context) (acme.Account, error) {
	text, err := i.storage.Load(ctx, i.accountKey())
	if err != nil {
		return acme.Account{}, fmt.Errorf("reading the account: %w", err)
	}
	var stored storedAccount
	if json.Unmarshal(text, &stored) != nil { // its error could show a piece of the key
		return acme.Account{}, fmt.Errorf("the account in %s is not readable", i.accountKey())
	}
	if stored.Account.PrivateKey, err = certmagic.PEMDecodePrivateKey([]byte(stored.Key)); err != nil {
		return acme.Account{}, fmt.Errorf("the key of the account in %s is not readable", i.accountKey())
	}
	return stored.Account, nil
}
