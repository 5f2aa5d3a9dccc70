package dev

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/sluice-proxy/sluice/internal/actor"
	"github.com/sluice-proxy/sluice/internal/app"
	"github.com/sluice-proxy/sluice/internal/cert"
	"github.com/sluice-proxy/sluice/internal/control"
)

// Names of parts, and of the forwards to them.
const (
	ateapiPart = "ateapi"
	egressPart = "egress"
	routerPart = "router"

	connectForward    = "connect"
	managementForward = "management"
)

// Turns of the parts when everything ends.
const (
	firstLeave = iota
	agentLeave
	workerLeave
	egressLeave
	lastLeave
)

// makeForwards gives the machine itself a way to what an operator uses.
func (s *supervisor) makeForwards(context.Context) error {
	for _, f := range []struct {
		name string
		port uint16
		to   netip.AddrPort
	}{
		{routerPart, routerPort, routerHost.at(routerPort)},
		{connectForward, connectPort, routerHost.at(connectPort)},
		{ateapiPart, ateapiPort, ateapiHost.at(ateapiPort)},
		{managementForward, managementPort, egressHost.at(managementPort)},
	} {
		made, err := openForward(f.name, f.port, s.net.Hub(), f.to)
		if err != nil {
			return err
		}
		s.forwards = append(s.forwards, made)
	}
	return nil
}

// forwarded is the address on this machine that leads to a part.
func (s *supervisor) forwarded(name string) string {
	return s.forwards[slices.IndexFunc(s.forwards, func(f *forward) bool { return f.name == name })].addr()
}

// accepts checks that somebody listens in the fabric.
func (s *supervisor) accepts(to netip.AddrPort) func(context.Context) error {
	return func(ctx context.Context) error {
		c, err := s.net.Hub().Dial(ctx, to)
		if err != nil {
			return err
		}
		return c.Close()
	}
}

func (s *supervisor) minter() string { return s.path("minter.sock") }

// ateapiProgram is the control plane, which also mints for the egress gateway: it has the authorities.
func (s *supervisor) ateapiProgram() program {
	args := []string{
		"ateapi", "--listen", ateapiHost.at(ateapiPort).String(), "--data-dir", s.Dir, "--minter-socket", s.minter(),
		"--egress-gateway-address", egressHost.at(egressPort).String(),
	}
	for n := 1; n <= s.Workers; n++ {
		args = append(args, "--worker", workerName(n))
	}
	for _, name := range certified() {
		args = append(args, "--origin", name)
	}
	return program{name: ateapiPart, in: s.hosts[ateapiHost.name], path: s.Self, args: args, leaves: lastLeave}
}

func (s *supervisor) startAteapi(ctx context.Context) error {
	return s.launch(ctx, s.ateapiProgram(), func(ctx context.Context) (err error) {
		if s.admin == nil {
			if s.admin, err = app.DialControl(s.controlOptions()); err != nil {
				s.admin = nil
				return err
			}
		}
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_, err = s.admin.ListWorkers(ctx)
		return err
	})
}

// controlOptions are how an operator on this machine reaches the control plane.
func (s *supervisor) controlOptions() app.ControlOptions {
	return app.ControlOptions{Address: s.forwarded(ateapiPart), ServerName: app.AteapiName, Credentials: s.component("admin")}
}

// startOrigins serves the world: web servers at public addresses, and canaries where nobody may ever come.
func (s *supervisor) startOrigins(context.Context) error {
	own, err := cert.OpenCredential(s.path("pki", app.OriginsMount, cert.CredentialFile))
	if err != nil {
		return err
	}
	secure := &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return own.Certificate(), nil }}
	world, gateway := s.hosts[originsHost.name], s.hosts[egressHost.name]
	at := netip.MustParseAddrPort
	s.origins = newOrigins()
	for _, o := range []originAt{
		{apiName, at("93.184.216.34:80"), nil, world.Listen},
		{apiName, at("93.184.216.34:443"), secure, world.Listen},
		{passName, at("93.184.216.35:443"), secure, world.Listen},
		{evilName, at("93.184.216.66:80"), nil, world.Listen},
		{evilName, at("93.184.216.66:443"), secure, world.Listen},
		{metadataName, at(metadataAddress + ":80"), nil, world.Listen},
		{privateName, at("10.88.0.80:80"), nil, world.Listen},
		{loopbackName, at("127.0.0.1:80"), nil, gateway.Listen},
	} {
		if err := s.origins.serve(o); err != nil {
			return err
		}
	}
	return errors.Join(s.write("origins", originsFile()), s.write("hosts", actorsFile()))
}

// egressConfig is what an operator would write.
func (s *supervisor) egressConfig() string {
	at := s.component("egress")
	own := at + "/servicedns.podcert.ate.dev/" + cert.CredentialFile
	return fmt.Sprintf(`entrypoints "egress" {
  address  = %q
  protocol = "connect"
  tls {
    cert_file      = %[2]q
    key_file       = %[2]q
    client_auth    = "require"
    client_ca_file = %[3]q
  }
  egress {
    control {
      address     = %[4]q
      server_name = %[5]q
      credentials = %[6]q
    }
    minter_socket  = %[7]q
    hosts_file     = %[8]q
    origin_ca_file = %[9]q
    audit_log      = %[10]q
  }
}

management {
  enabled     = true
  address     = %[11]q
  allowed_ips = []
}
`, egressHost.at(egressPort), own, at+"/actor-id-ca-certs/ca.crt", ateapiHost.at(ateapiPort), app.AteapiName, at, s.minter(),
		s.path("origins"), at+"/origins/"+cert.TrustFile, s.auditLog(), egressHost.at(managementPort))
}

func (s *supervisor) auditLog() string { return s.path("logs", "audit.jsonl") }

// managementToken is the variable that has the token of management, as the gateway's configuration has it by default.
const managementToken = "A3S_GATEWAY_ADMIN_TOKEN"

func (s *supervisor) startEgress(ctx context.Context) error {
	if err := s.write("egress.acl", s.egressConfig()); err != nil {
		return err
	}
	p := program{
		name: egressPart, in: s.hosts[egressHost.name], path: s.Self, args: []string{"run", "--config", s.path("egress.acl")},
		env: []string{managementToken + "=" + s.token}, leaves: egressLeave,
	}
	return s.launch(ctx, p, func(ctx context.Context) error {
		return errors.Join(s.healthy(ctx), s.accepts(egressHost.at(egressPort))(ctx))
	})
}

// management is where an operator on this machine reaches the egress gateway's.
func (s *supervisor) management() string {
	return "http://" + s.forwarded(managementForward) + "/api/gateway"
}

// healthy asks the egress gateway's management.
func (s *supervisor) healthy(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.management()+"/health", nil)
	if err != nil {
		return err
	}
	r.Header.Set("Authorization", "Bearer "+s.token)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(r)
	if err != nil {
		return err
	}
	if err := resp.Body.Close(); err != nil || resp.StatusCode != http.StatusOK {
		return fmt.Errorf("management answers %d (%w)", resp.StatusCode, err)
	}
	return nil
}

func (s *supervisor) startRouter(ctx context.Context) error {
	at := s.component("router")
	own, trust := at+"/podidentity.podcert.ate.dev/"+cert.CredentialFile, at+"/podidentity.podcert.ate.dev/"+cert.TrustFile
	p := program{
		name: routerPart, in: s.hosts[routerHost.name], path: s.Self, leaves: firstLeave,
		args: []string{
			"router", "--mode=ingress", "--port-https", strconv.Itoa(routerPort), "--port-connect-tls", strconv.Itoa(connectPort),
			"--envoy-cert-path", at + "/servicedns.podcert.ate.dev/" + cert.CredentialFile, "--ingress-client-ca-file", trust,
			"--ingress-allowed-spiffe-ids", app.AdminID,
			"--ateapi-address", ateapiHost.at(ateapiPort).String(), "--ateapi-server-name", app.AteapiName,
			"--ateapi-client-cert", own, "--ateapi-ca-file", at + "/servicedns.podcert.ate.dev/" + cert.TrustFile,
			"--upstream-credential-bundle", own, "--upstream-trust-bundle", trust,
			"--drain-delay", "0s",
		},
	}
	return s.launch(ctx, p, func(ctx context.Context) error {
		return errors.Join(s.accepts(routerHost.at(routerPort))(ctx), s.accepts(routerHost.at(connectPort))(ctx))
	})
}

// startWorkers starts all workers, each with the agent that stands between it and the control plane.
func (s *supervisor) startWorkers(ctx context.Context) error {
	if err := s.programs(); err != nil {
		return err
	}
	for n := 1; n <= s.Workers; n++ {
		if err := errors.Join(s.startWorker(ctx, n), s.startAgent(ctx, n)); err != nil {
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
			"--atunnel-credential-bundle", at + "/podidentity.podcert.ate.dev/" + cert.CredentialFile,
			"--atunnel-trust-bundle", at + "/podidentity.podcert.ate.dev/" + cert.TrustFile,
			"--egress-gateway", egressHost.at(egressPort).String(), "--atunnel-egress-trust-bundle", at + "/servicedns.podcert.ate.dev/" + cert.TrustFile,
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
