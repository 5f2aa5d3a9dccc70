package app

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/net/netutil"

	"github.com/sluice-proxy/sluice/internal/actor"
	"github.com/sluice-proxy/sluice/internal/cert"
	"github.com/sluice-proxy/sluice/internal/control"
	"github.com/sluice-proxy/sluice/internal/devplane"
	"github.com/sluice-proxy/sluice/internal/mutual"
	"github.com/sluice-proxy/sluice/internal/store"
)

const (
	// ateapiConnections bounds the connections to a control plane.
	ateapiConnections = 1024
	// ateapiWait is how long calls that are under way may last when it stops.
	ateapiWait = 5 * time.Second
)

// StoreKind is where a control plane keeps its records.
type StoreKind string

// Kinds of stores.
const (
	StoreMemory StoreKind = "memory" // in the process, and nothing beyond it
	StoreSQLite StoreKind = "sqlite" // in a file of the data directory
)

// AteapiOptions describe a control plane for development.
type AteapiOptions struct {
	// Listen is where it serves, such as 127.0.0.1:7443; with port 0 a free one.
	Listen string
	// DataDir is where certificates are, and the records of StoreSQLite. It is made when it is not there, for its owner alone,
	// and has one control plane at a time.
	DataDir string
	Store   StoreKind
	// EgressGateway is where outbound connections of actors go, host:port; empty closes them all.
	EgressGateway string
	// Workers are names for which certificates are made, beside those of the router, the egress gateway and the admin.
	Workers []string
	// Origins are names for which a certificate is made that stands for a web server of the world; none makes none.
	Origins []string
	// Minter is the path of the socket on which interception certificates are minted; empty is none.
	Minter string
	Log    *slog.Logger
}

// Ateapi is a control plane that serves. It lives until Close.
type Ateapi struct {
	// Addr is where it serves.
	Addr string
	// Plane is what it serves, for whoever is in the same process.
	Plane *devplane.Plane

	hub    *cert.Hub
	store  store.Store
	server *control.Server
	stop   context.CancelFunc
	run    sync.WaitGroup
	failed chan error // holds one for each part that runs
	close  func() error
}

// StartAteapi starts a control plane, and returns once it serves. ctx is only for the start.
func StartAteapi(ctx context.Context, o AteapiOptions) (_ *Ateapi, err error) {
	a := &Ateapi{failed: make(chan error, 3)}
	a.close = sync.OnceValue(a.end)
	defer func() {
		if err != nil {
			err = errors.Join(err, a.release())
		}
	}()
	if err := a.open(ctx, o); err != nil {
		return nil, err
	}
	hosts := control.NewHosts(o.EgressGateway)
	a.Plane = devplane.New(a.store, hosts)
	a.Plane.Signer, a.Plane.Tunnels = a.hub.Authority(cert.ActorAuthority), actor.Tunnels{Domain: actor.ActorDomain}
	// The directory is ours alone, so whoever held locks in its store has ended.
	if n, err := a.Plane.Reclaim(ctx); err != nil {
		return nil, err
	} else if n > 0 {
		o.Log.Warn("operations had not ended when the control plane did; their actors can be resumed, suspended or deleted", "actors", n)
	}
	options, err := a.serverOptions(hosts, o.Log)
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", o.Listen)
	if err != nil {
		return nil, err
	}
	a.Addr, a.server = l.Addr().String(), control.NewServer(options)
	return a, a.start(netutil.LimitListener(l, ateapiConnections), o)
}

// open opens what is in the data directory.
func (a *Ateapi) open(ctx context.Context, o AteapiOptions) (err error) {
	if err := os.MkdirAll(o.DataDir, 0o700); err != nil {
		return fmt.Errorf("the data directory (choose it with --data-dir): %w", err)
	}
	if a.hub, err = cert.OpenHub(cert.HubOptions{Dir: PKIDir(o.DataDir), Log: o.Log}); err != nil {
		return fmt.Errorf("the certificates in %s: %w", PKIDir(o.DataDir), err)
	}
	if err := mountComponents(a.hub, o); err != nil {
		return err
	}
	a.store, err = openStore(ctx, o)
	return err
}

// start lets everything run that runs.
func (a *Ateapi) start(l net.Listener, o AteapiOptions) error {
	var minter net.Listener
	if o.Minter != "" {
		var err error
		if minter, err = cert.ListenMinter(o.Minter); err != nil {
			return errors.Join(fmt.Errorf("the minter's socket: %w", err), l.Close())
		}
	}
	ctx, stop := context.WithCancel(context.Background())
	a.stop = stop
	a.run.Go(func() { a.failed <- a.hub.Run(ctx) })
	a.run.Go(func() { a.failed <- a.server.Serve(l) })
	if minter != nil {
		m := a.hub.Authority(cert.InterceptionAuthority)
		a.run.Go(func() { a.failed <- cert.ServeMinter(ctx, minter, m, o.Log) })
	}
	return nil
}

// Wait returns when ctx ends, or with the error of a part that has ended by itself.
func (a *Ateapi) Wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case err := <-a.failed:
		return errors.Join(errors.New("a part of the control plane has ended"), err)
	}
}

// Close ends it: calls that are under way have 5 s.
func (a *Ateapi) Close() error { return a.close() }

func (a *Ateapi) end() error {
	a.server.Stop(ateapiWait)
	a.stop()
	a.run.Wait()
	return a.release()
}

// release gives back what does not run.
func (a *Ateapi) release() error {
	var errs []error
	if a.store != nil {
		errs = append(errs, a.store.Close())
	}
	if a.hub != nil {
		errs = append(errs, a.hub.Close())
	}
	return errors.Join(errs...)
}

func openStore(ctx context.Context, o AteapiOptions) (store.Store, error) {
	switch o.Store {
	case StoreMemory:
		return store.NewMemory(), nil
	case StoreSQLite:
		s, err := store.OpenSQLite(ctx, filepath.Join(o.DataDir, "ateapi.db"))
		if err != nil { // else a nil *SQLite would be a store
			return nil, err
		}
		return s, nil
	}
	return nil, fmt.Errorf("a store %q is not known, use %s or %s", o.Store, StoreSQLite, StoreMemory)
}

func (a *Ateapi) serverOptions(hosts *control.Hosts, log *slog.Logger) (control.ServerOptions, error) {
	own, err := mutual.OpenCredential(a.hub.Path("ateapi/"+ServiceMount, cert.CredentialFile))
	if err != nil {
		return control.ServerOptions{}, err
	}
	peers, err := mutual.OpenTrust(a.hub.Path("ateapi/"+IdentityMount, cert.TrustFile))
	if err != nil {
		return control.ServerOptions{}, err
	}
	welcome := func(string) error { return nil } // what an identity may do is decided for each call
	return control.ServerOptions{
		Plane: a.Plane, Hosts: hosts, Log: log, Identify: identify(peers),
		TLS: mutual.TLS{Own: own, Peers: peers, Check: welcome, Optional: true, Protocols: []string{"h2"}}.Server(),
		Roles: control.Roles{
			Router: []string{RouterID}, Egress: []string{EgressID}, Admin: []string{AdminID},
			Domain: actor.WorkloadDomain, WorkerNamespace: workerNamespace,
		},
	}, nil
}

// identify proves a client's certificate again, as it was proven in the handshake: it may have ended since.
func identify(peers *mutual.Trust) control.Identify {
	return func(s tls.ConnectionState) (control.Caller, error) {
		if len(s.PeerCertificates) == 0 {
			return control.Caller{}, nil
		}
		id, err := mutual.VerifyURI(s.PeerCertificates, peers.Roots(), x509.ExtKeyUsageClientAuth)
		return control.Caller{ID: id, Until: s.PeerCertificates[0].NotAfter}, err
	}
}
