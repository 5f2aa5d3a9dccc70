package dev

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/internal/app"
	"github.com/sluice-proxy/sluice/internal/cert"
	"github.com/sluice-proxy/sluice/internal/egress"
	"github.com/sluice-proxy/sluice/internal/mutual"
)

// curl asks for a page and prints the status alone.
func curl(args ...string) []string {
	return append([]string{"curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}", "--max-time", "8"}, args...)
}

// wanted describes a line of the audit log. What is empty does not matter.
type wanted struct {
	verdict        string
	reasons        []string
	leg            egress.Leg
	sni, authority string
	dialed         string
}

func (w wanted) fits(r egress.Record) bool {
	same := func(want, got string) bool { return want == "" || want == got }
	return same(w.verdict, r.Verdict) && same(string(w.leg), string(r.Leg)) && same(w.sni, r.SNI) && same(w.authority, r.Authority) &&
		same(w.dialed, r.Dialed) && (len(w.reasons) == 0 || slices.Contains(w.reasons, string(r.Reason)))
}

// audited waits for a line about an actor of the demonstration that was written for a decision since from.
func (t *tour) audited(ctx context.Context, from time.Time, w wanted) (found egress.Record, err error) {
	var seen []string
	err = until(ctx, eventLimit, fmt.Sprintf("a line of the audit log with %+v", w), func() (bool, error) {
		text, err := os.ReadFile(t.auditLog())
		if err != nil {
			return false, err
		}
		seen = nil
		for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
			var r egress.Record
			if json.Unmarshal(lines.Bytes(), &r) != nil || r.Time.Before(from) || r.Actor != demoActor.Name {
				continue
			}
			seen = append(seen, fmt.Sprintf("%s/%s/%s sni=%s authority=%s", r.Leg, r.Verdict, r.Reason, r.SNI, r.Authority))
			if w.fits(r) {
				found = r
				return true, nil
			}
		}
		return false, fmt.Errorf("seen: %s", strings.Join(seen, "; "))
	})
	return found, err
}

// way is something that an actor tries.
type way struct {
	what   string
	client string   // program that it needs
	args   []string // all that is executed
	// want judges what came of it.
	want func(EchoRun) error
	line wanted
}

// try has an actor try ways, and checks each with its line of the audit log.
func (t *tour) try(ctx context.Context, ways []way) error {
	for _, w := range ways {
		if !t.has(w.client, w.what) {
			continue
		}
		from := time.Now()
		out, err := t.inside(ctx, demoActor, w.args...)
		if err == nil {
			err = w.want(out)
		}
		rec, aerr := t.audited(ctx, from, w.line)
		figure := strings.TrimSpace(out.Out)
		if len(figure) > 24 || figure == "" {
			figure = fmt.Sprintf("exit %d", out.Code)
		}
		t.check(w.what, errors.Join(err, aerr), "%-10s %4d ms   audit: %s %s", figure, out.Millis, rec.Verdict, rec.Reason)
	}
	return nil
}

// actorPrograms are the directories of the machine's programs that an actor has.
var actorPrograms = []string{"/usr/local/bin", "/usr/bin", "/bin"}

// has reports whether actors have a program. Where they have not, it shows what cannot be asserted for that.
func (t *tour) has(program, what string) bool {
	if there(program) {
		return true
	}
	t.absent(what, program+" is not in "+strings.Join(actorPrograms, ", ")+", which is all that an actor sees")
	return false
}

func there(program string) bool {
	return slices.ContainsFunc(actorPrograms, func(dir string) bool {
		_, err := exec.LookPath(filepath.Join(dir, program))
		return err == nil
	})
}

// prints wants a program to end well and to print something.
func prints(text string) func(EchoRun) error {
	return func(out EchoRun) error {
		if out.Code != 0 || !strings.Contains(out.Out, text) {
			return fmt.Errorf("exit %d, wanted %q: %s %s", out.Code, text, out.Out, out.Err)
		}
		return nil
	}
}

// fails wants a program to get nothing.
func fails(out EchoRun) error {
	if out.Code == 0 || strings.Contains(out.Out, "200") {
		return fmt.Errorf("exit %d: %s", out.Code, out.Out)
	}
	return nil
}

// Programs that people write.
const (
	pythonGet = `import urllib.request as u; print(u.urlopen("https://` + apiName + `/", timeout=8).status)`
	nodeGet   = `require("https").get("https://` + apiName + `/", r => { console.log(r.statusCode); r.resume() })`
)

// allowed shows what an actor may reach, by clients that know of no authority but those of their environment.
func (t *tour) allowed(ctx context.Context) error {
	if _, err := t.who(ctx, demoActor); err != nil {
		return err
	}
	opened := wanted{verdict: "allow", leg: egress.LegIntercepted, sni: apiName}
	return t.try(ctx, []way{
		{"http, curl", "curl", curl("http://" + apiName + "/"), prints("200"), wanted{verdict: "allow", leg: egress.LegCleartext, authority: apiName}},
		{"https opened, curl", "curl", curl("https://" + apiName + "/"), prints("200"), opened},
		{"https opened, Python", "python3", []string{"python3", "-c", pythonGet}, prints("200"), opened},
		{"https opened, Node", "node", []string{"node", "-e", nodeGet}, prints("200"), opened},
		{
			"https opened, openssl s_client", "openssl",
			[]string{"sh", "-c", "printf 'GET / HTTP/1.1\\r\\nHost: " + apiName + "\\r\\nConnection: close\\r\\n\\r\\n' | " +
				"openssl s_client -connect " + apiName + ":443 -servername " + apiName + " -verify_return_error -brief -ign_eof 2>/dev/null"},
			prints("HTTP/1.1 200"), opened,
		},
		{"https passed through, curl -k", "curl", curl("-k", "https://"+passName+"/"), prints("200"), wanted{verdict: "allow", leg: egress.LegPassthrough, sni: passName}},
		{
			"by the origin's own certificate, openssl", "openssl",
			[]string{"sh", "-c", "echo | openssl s_client -connect " + passName + ":443 -servername " + passName + " -showcerts 2>/dev/null"},
			t.shows(),
			wanted{verdict: "allow", leg: egress.LegPassthrough, sni: passName},
		},
	})
}

// shows wants the certificate that a program prints to be the origins' own.
func (t *tour) shows() func(EchoRun) error {
	return func(out EchoRun) error {
		own, err := mutual.OpenCredential(t.path("pki", app.OriginsMount, cert.CredentialFile))
		if err != nil {
			return err
		}
		block, _ := pem.Decode([]byte(out.Out[max(strings.Index(out.Out, "-----BEGIN"), 0):]))
		if block == nil || !bytes.Equal(block.Bytes, own.Leaf().Raw) {
			return errors.New("another certificate was shown")
		}
		return nil
	}
}

// refused shows what an actor may not reach.
func (t *tour) refused(ctx context.Context) error {
	byAddress := func(name string) wanted {
		return wanted{verdict: "deny", reasons: []string{"address_denied"}, authority: name}
	}
	noRule := []string{"no_rule"}
	worker := workerHost(1).at(workerPort).String()
	return t.try(ctx, []way{
		{"by name, http", "curl", curl("http://" + evilName + "/"), prints("403"), wanted{verdict: "deny", reasons: noRule, authority: evilName}},
		{"by name, https", "curl", curl("https://" + evilName + "/"), fails, wanted{verdict: "deny", reasons: noRule, sni: evilName}},
		{"by address, an allowed name: metadata", "curl", curl("http://" + metadataName + "/latest/meta-data/"), prints("403"), byAddress(metadataName)},
		{"by address, an allowed name: loopback", "curl", curl("http://" + loopbackName + "/"), prints("403"), byAddress(loopbackName)},
		{"by address, an allowed name: private", "curl", curl("http://" + privateName + "/"), prints("403"), byAddress(privateName)},
		{"the metadata address itself", "curl", curl("http://" + metadataAddress + "/"), prints("403"), wanted{verdict: "deny", reasons: noRule, dialed: metadataAddress + ":80"}},
		{
			"SNI is not Host", "curl", curl("-H", "Host: "+otherName, "https://"+apiName+"/"), prints("403"),
			wanted{verdict: "deny", reasons: []string{"sni_mismatch"}, sni: apiName},
		},
		{"the worker, dialed directly", "curl", curl("http://" + worker + "/"), prints("403"), wanted{verdict: "deny", reasons: noRule, dialed: worker}},
		{"the worker, by TLS", "curl", curl("-k", "https://"+worker+"/"), fails, wanted{verdict: "deny", reasons: []string{"sni_missing"}, dialed: worker}},
	})
}

// canaries shows that those places are there, and that nobody has come.
func (t *tour) canaries(ctx context.Context) error {
	for _, c := range []struct{ what, name, from, at string }{
		{"cloud metadata", metadataName, egressHost.name, metadataAddress + ":80"},
		{"the gateway's own loopback", loopbackName, egressHost.name, "127.0.0.1:80"},
		{"a private address", privateName, egressHost.name, "10.88.0.80:80"},
		{"a name that no rule allows", evilName, egressHost.name, "93.184.216.66:443"},
	} {
		hits := t.origins.count(c.name)
		if !t.check(c.what, wantCount(hits, 0), "never hit") {
			continue
		}
		t.check("  though it is there", t.knock(ctx, c.from, c.at, c.name), "%s answers the gateway's namespace", c.at)
	}
	return nil
}

// knock connects from a namespace, as the gateway could, and wants it to be counted: a canary that cannot be reached would prove nothing.
func (t *tour) knock(ctx context.Context, from, at, name string) error {
	before := t.origins.count(name)
	c, err := t.hosts[from].Dial(ctx, netip.MustParseAddrPort(at))
	if err != nil {
		return err
	}
	defer c.Close()
	return until(ctx, eventLimit, "the canary counts", func() (bool, error) { return t.origins.count(name) == before+1, nil })
}

func wantCount(got, want int64) error {
	if got != want {
		return fmt.Errorf("hit %d times, not %d", got, want)
	}
	return nil
}

// wantText wants a command to have said something.
func wantText(text string, err error, part string) error {
	if err == nil && !strings.Contains(text, part) {
		err = fmt.Errorf("no %q in: %s", part, text)
	}
	return err
}
