package dev

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/sluice-proxy/sluice/internal/actor"
	"github.com/sluice-proxy/sluice/internal/app"
	"github.com/sluice-proxy/sluice/internal/cert"
	"github.com/sluice-proxy/sluice/internal/control"
)

// startWorkers starts all workers, each with the agent that stands between it and the control plane.
func (s *supervisor) startWorkers(ctx context.Context) error {
	if err := s.programs(); err != nil {
		return err
	}
	for n := 1; n <= s.Workers; n++ {
		if err := s.startWorker(ctx, n); err != nil {
			return err
		}
		if err := s.startAgent(ctx, n); err != nil {
			return err
		}
	}
	return nil
}

// programs makes the directory of what actors can be.
func (s *supervisor) programs() error {
	dir := s.path("programs")
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return os.Symlink(s.Self, dir+"/echo")
}

func (s *supervisor) orders(worker string) string { return s.path(worker + ".sock") }
func (s *supervisor) broker(worker string) string { return s.path(worker + "-broker.sock") }

func (s *supervisor) startWorker(ctx context.Context, n int) error {
	h := workerHost(n)
	at := s.component("worker-" + h.name)
	p := program{
		name: h.name, in: s.hosts[h.name], path: s.Worker, leaves: workerLeave,
		args: []string{
			"run", "--run", s.Run, "--orders", s.orders(h.name), "--slots", strconv.Itoa(s.Slots), "--broker", s.broker(h.name),
			"--atunnel-connect-listen-address", h.at(workerPort).String(),
			"--atunnel-credential-bundle", filepath.Join(at, app.IdentityMount, cert.CredentialFile),
			"--atunnel-trust-bundle", filepath.Join(at, app.IdentityMount, cert.TrustFile),
			"--egress-gateway", egressHost.at(egressPort).String(), "--atunnel-egress-trust-bundle", filepath.Join(at, app.ServiceMount, cert.TrustFile),
		},
	}
	return s.launch(ctx, p, func(ctx context.Context) error { // it listens for tunnels before it takes orders
		c, err := new(net.Dialer).DialContext(ctx, "unix", s.orders(h.name))
		if err != nil {
			return err
		}
		return c.Close()
	})
}

func (s *supervisor) startAgent(ctx context.Context, n int) error {
	h := workerHost(n)
	p := program{
		name: "atelet-" + h.name, in: s.hosts[h.name], path: s.Self, leaves: agentLeave,
		args: []string{
			"atelet", "--name", h.name, "--control", ateapiHost.at(ateapiPort).String(), "--credentials", s.component("worker-" + h.name),
			"--orders", s.orders(h.name), "--broker", s.broker(h.name), "--address", h.addrs[0].Addr().String(),
			"--programs", s.path("programs"), "--hosts", s.path("hosts"), "--state-dir", s.path("agents"), "--log-dir", s.path("logs", "actors"),
		},
	}
	return s.launch(ctx, p, func(ctx context.Context) error {
		_, err := s.admin.GetWorker(ctx, h.name)
		return err
	})
}

// What is there to try: an atespace, a template, and an actor with a policy.
const (
	demoAtespace = "demo"
	demoTemplate = "echo"
)

var demoActor = actor.Ref{Atespace: demoAtespace, Name: "a1"}

// seed makes what there is to try.
func (s *supervisor) seed(ctx context.Context) error {
	if _, err := s.admin.CreateAtespace(ctx, demoAtespace); err != nil {
		return err
	}
	_, err := s.admin.CreateTemplate(ctx, actor.Template{
		Ref: actor.Ref{Atespace: demoAtespace, Name: demoTemplate},
		Containers: []actor.Container{{
			Name: "main", Image: "local:echo", Args: []string{"dev", "actor"}, Probe: &actor.Probe{Path: "/healthz", Port: 80, Timeout: 20 * time.Second},
		}},
	})
	if err != nil {
		return err
	}
	return s.create(ctx, demoActor, demoPolicy)
}

// create makes an actor with a policy; "" gives it none.
func (s *supervisor) create(ctx context.Context, ref actor.Ref, policy string) error {
	if _, err := s.admin.CreateActor(ctx, ref, actor.Ref{Atespace: demoAtespace, Name: demoTemplate}, nil); err != nil {
		return err
	}
	if policy == "" {
		return nil
	}
	p, err := control.ParsePolicy([]byte(policy), ref)
	if err != nil {
		return err
	}
	_, err = s.admin.CreatePolicy(ctx, ref, p)
	return err
}
