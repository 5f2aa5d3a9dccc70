package app

import (
	"crypto/tls"
	"fmt"

	"github.com/sluice-proxy/sluice/internal/actor"
	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/control"
	"github.com/sluice-proxy/sluice/internal/mutual"
	"github.com/sluice-proxy/sluice/internal/telemetry"
)

// openActors makes what a way to actors needs to reach the control plane and workers. It connects to nobody; certificates are
// read again for each connection.
func (a *App) openActors(cfg config.ActorWay) (actor.Link, error) {
	c, err := openControl(cfg.Control)
	if err != nil {
		return actor.Link{}, err
	}
	own, peers, err := mutualFiles(cfg.Workers.CredentialFile, cfg.Workers.CAFile)
	if err != nil {
		_ = c.Close()
		return actor.Link{}, fmt.Errorf("for workers: %w", err)
	}
	return actor.Link{
		Control: c, Close: c.Close, Dial: a.dialFunc(),
		WorkerTLS: func(check func(id string) error) *tls.Config {
			return mutual.TLS{Own: own, Peers: peers, Check: check, Protocols: []string{"h2", "http/1.1"}}.Client()
		},
	}, nil
}

// openControl makes a client of a control plane. It connects when it is used; certificates are read again for each connection.
func openControl(cfg config.ControlPlane) (*control.Client, error) {
	own, peers, err := mutualFiles(cfg.CredentialFile, cfg.CAFile)
	if err != nil {
		return nil, fmt.Errorf("for the control plane: %w", err)
	}
	return control.NewClient(cfg.Address, mutual.TLS{Own: own, Peers: peers, Protocols: []string{"h2"}}.ClientOf(cfg.ServerName))
}

// mutualFiles opens what one side of mutual TLS has: its own certificate, and who signs the other's.
func mutualFiles(credential, ca string) (*mutual.Credential, *mutual.Trust, error) {
	own, err := mutual.OpenCredential(credential)
	if err != nil {
		return nil, nil, err
	}
	peers, err := mutual.OpenTrust(ca)
	return own, peers, err
}

// ActorStats are the counts of the ways to actors.
func (a *App) ActorStats() actor.Stats { return a.actors.Stats() }

// actorMeasures is what metrics show of the ways to actors; nil when there are none.
func (a *App) actorMeasures() *telemetry.Actors {
	s := a.actors.Stats()
	if s.Ways == 0 {
		return nil
	}
	out := &telemetry.Actors{Parked: s.Parked, Rejected: s.Rejected}
	took := func(d actor.Distribution) telemetry.Distribution {
		return telemetry.Distribution{Bounds: actor.Bounds[:], Counts: d.Buckets[:], Sum: d.Sum.Seconds()}
	}
	a.actors.Measured(func(k actor.RouteKey, d actor.Distribution) {
		out.Routes = append(out.Routes, telemetry.ActorRoute{
			Atespace: k.Template.Atespace, Template: k.Template.Name, Outcome: k.Outcome, Resume: k.Resume, Took: took(d),
		})
	}, func(outcome string, d actor.Distribution) {
		out.Waits = append(out.Waits, telemetry.ActorWait{Outcome: outcome, Took: took(d)})
	})
	return out
}
