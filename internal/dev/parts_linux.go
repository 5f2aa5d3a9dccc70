package dev

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/sluice-proxy/sluice/internal/app"
	"github.com/sluice-proxy/sluice/internal/cert"
	"github.com/sluice-proxy/sluice/internal/mutual"
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
	own, err := mutual.OpenCredential(s.path("pki", app.OriginsMount, cert.CredentialFile))
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
	own := filepath.Join(at, app.ServiceMount, cert.CredentialFile)
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
      address         = %[4]q
      server_name     = %[5]q
      credential_file = %[6]q
      ca_file         = %[7]q
    }
    minter_socket  = %[8]q
    hosts_file     = %[9]q
    origin_ca_file = %[10]q
    audit_log      = %[11]q
  }
}

management {
  enabled     = true
  address     = %[12]q
  allowed_ips = []
}
`, egressHost.at(egressPort), own, at+"/actor-id-ca-certs/ca.crt", ateapiHost.at(ateapiPort), app.AteapiName,
		filepath.Join(at, app.IdentityMount, cert.CredentialFile), filepath.Join(at, app.ServiceMount, cert.TrustFile), s.minter(),
		s.path("origins"), at+"/origins/"+cert.TrustFile, s.auditLog(), egressHost.at(managementPort))
}

func (s *supervisor) auditLog() string { return s.path("logs", "audit.jsonl") }

// managementToken is the variable that has the token of management, as the gateway's configuration has it by default.
const managementToken = "A3S_GATEWAY_ADMIN_TOKEN"

func (s *supervisor) startEgress(ctx context.Context) error {
	if err := errors.Join(s.write("egress.acl", s.egressConfig()), s.write("token", s.token)); err != nil {
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
	own, trust := filepath.Join(at, app.IdentityMount, cert.CredentialFile), filepath.Join(at, app.IdentityMount, cert.TrustFile)
	p := program{
		name: routerPart, in: s.hosts[routerHost.name], path: s.Self, leaves: firstLeave,
		args: []string{
			"router", "--mode=ingress", "--port-https", strconv.Itoa(routerPort), "--port-connect-tls", strconv.Itoa(connectPort),
			"--envoy-cert-path", filepath.Join(at, app.ServiceMount, cert.CredentialFile), "--ingress-client-ca-file", trust,
			"--ingress-allowed-spiffe-ids", app.AdminID,
			"--ateapi-address", ateapiHost.at(ateapiPort).String(), "--ateapi-server-name", app.AteapiName,
			"--ateapi-client-cert", own, "--ateapi-ca-file", filepath.Join(at, app.ServiceMount, cert.TrustFile),
			"--upstream-credential-bundle", own, "--upstream-trust-bundle", trust,
			"--drain-delay", "0s",
		},
	}
	return s.launch(ctx, p, func(ctx context.Context) error {
		return errors.Join(s.accepts(routerHost.at(routerPort))(ctx), s.accepts(routerHost.at(connectPort))(ctx))
	})
}
