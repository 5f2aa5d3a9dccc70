package app_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/app"
	"github.com/sluice-proxy/sluice/internal/cert"
	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/gatewaytest"
)

// What flags say is a configuration, which serves as one that was written.
func TestRouterOptions(t *testing.T) {
	n := newActorNet(t, iAm)
	n.create("a")
	n.attach("w1", 1, 1)
	ports := gatewaytest.FreePorts(t, 2)
	o := app.DefaultRouterOptions()
	o.HTTPSPort, o.ConnectPort, o.AllowedIDs = ports[0], ports[1], []string{app.AdminID}
	o.ServingCert, o.ClientCA = n.file("router", serviceDNS, cert.CredentialFile), n.file("router", podIdentity, cert.TrustFile)
	o.Ateapi, o.AteapiName, o.AteapiCA = n.Addr, app.AteapiName, n.file("router", serviceDNS, cert.TrustFile)
	o.AteapiCert, o.WorkerCert, o.WorkerCA = n.file("router", podIdentity, cert.CredentialFile), n.file("router", podIdentity, cert.CredentialFile), o.ClientCA
	o.DrainDelay = 0
	text, err := o.Config()
	if err != nil {
		t.Fatal(err)
	}
	// There is no flag for the port of workers, which is always the same where flags are used.
	g := gatewaytest.Start(t, strings.Replace(text, "workers {", fmt.Sprintf("workers {\n      port = %d", n.port), 1))
	defer g.Stop()
	if r := get(t, n.httpClient("admin"), fmt.Sprintf("https://127.0.0.1:%d/", ports[0]), "ate-target-actor", "demo/a"); r.status != 200 || r.body != "a" {
		t.Errorf("%+v", r)
	}
	if _, err := tell(n.httpClient(""), "GET", fmt.Sprintf("https://127.0.0.1:%d/", ports[0]), nil); err == nil {
		t.Error("a client without a certificate was served")
	}
	c, r := n.connect(fmt.Sprintf("127.0.0.1:%d", ports[1]), "admin", "h:9000", "ate-target-actor", "demo/a")
	if r.status != 200 {
		t.Fatalf("%+v", r)
	}
	if r := c.ask(t, "GET", "/"); r.body != "a" {
		t.Errorf("%+v", r)
	}
}

// Flags that contradict each other are refused, and none leaves the text in which it stands.
func TestRouterOptionsRefused(t *testing.T) {
	good := app.DefaultRouterOptions()
	good.AllowedIDs = []string{app.AdminID}
	for name, change := range map[string]func(*app.RouterOptions){
		"nobody is allowed":         func(o *app.RouterOptions) { o.AllowedIDs = nil },
		"a drain below the budget":  func(o *app.RouterOptions) { o.DrainTimeout = time.Second },
		"a negative delay":          func(o *app.RouterOptions) { o.DrainDelay = -1 },
		"no budget":                 func(o *app.RouterOptions) { o.ParkBudget = 0 },
		"an address without a port": func(o *app.RouterOptions) { o.Ateapi = "k8s:///api" },
		"a prefix of a path":        func(o *app.RouterOptions) { o.WorkerPrefix = "spiffe://d/ns/" },
		"a factor below 1":          func(o *app.RouterOptions) { o.ParkFactor = 0.5 },
		"a jitter of 1":             func(o *app.RouterOptions) { o.ParkJitter = 1 },
		"a port too large":          func(o *app.RouterOptions) { o.HTTPSPort = 70000 },
		"the same port twice":       func(o *app.RouterOptions) { o.ConnectPort = o.HTTPSPort },
		"an id that is none":        func(o *app.RouterOptions) { o.AllowedIDs = []string{`a"], allow_anyone = true, x = ["`} },
	} {
		o := good
		change(&o)
		text, err := o.Config()
		if err != nil {
			continue
		}
		if _, ds := config.Load([]config.Source{{File: "flags", Text: []byte(text)}}); !ds.HasErrors() {
			t.Errorf("%s: accepted\n%s", name, text)
		}
	}
	text, err := good.Config()
	if _, ds := config.Load([]config.Source{{File: "flags", Text: []byte(text)}}); err != nil || len(ds) > 0 {
		t.Errorf("the defaults: %v %v\n%s", err, ds, text)
	}
}
