package control_test

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/sluice-proxy/sluice/api/ateapi"
	"github.com/sluice-proxy/sluice/internal/control"
	"github.com/sluice-proxy/sluice/internal/egress"
)

// FuzzPolicy takes policies from the wire. Whatever they are, they are refused or they decide, and one that is not
// refused held nothing that was not understood.
func FuzzPolicy(f *testing.F) {
	wire, err := proto.Marshal(message())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(wire)
	f.Add([]byte{})
	f.Add([]byte("\x0a\x0f\x0a\x04demo\x12\x07default\x12\x02\x20\x01"))
	f.Fuzz(func(t *testing.T, wire []byte) {
		var m ateapi.EgressPolicy
		if proto.Unmarshal(wire, &m) != nil {
			return
		}
		p, err := control.DecodePolicy("egress_policy", &m)
		if err != nil {
			return
		}
		var known ateapi.EgressPolicy
		if err := (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(wire, &known); err != nil || !proto.Equal(&known, &m) {
			t.Fatalf("a field that is not known passed: %v, %v", &m, err)
		}
		rules, err := egress.Compile(p, p.Atespace)
		if err != nil {
			return
		}
		if stored, err := egress.Compile(p.WithDefaults(), p.Atespace); err != nil {
			t.Fatalf("with its defaults the policy is refused: %v (%v)", err, stored)
		}
		for _, port := range []uint16{1, 80, 443, 8443} {
			checkTLS(t, p, rules, port)
		}
	})
}

// checkTLS asks for every name of a policy, and for neighbours of it, what a tunnel would do that has only the list of one port,
// and compares it with what the rules themselves say.
func checkTLS(t *testing.T, p egress.Policy, rules *egress.Rules, port uint16) {
	t.Helper()
	list := rules.TLSRules(port)
	for _, r := range p.Rules {
		var names []string
		switch {
		case r.HTTPS != nil:
			names = r.HTTPS.Hostnames
		case r.Passthrough != nil:
			names = r.Passthrough.Hostnames
		}
		for _, name := range names {
			for _, sni := range []string{name, strings.TrimPrefix(name, "*."), "a." + name, strings.Replace(name, "*", "a", 1), "a.b." + name} {
				h, err := egress.ParseName(sni)
				if err != nil {
					continue
				}
				want := egress.ModeClose
				if m, ok := rules.TLS(h, port); ok && m.Kind == egress.Passthrough {
					want = egress.ModePassthrough
				} else if ok {
					want = egress.ModeIntercept
				}
				if got := egress.ChooseTLS(h, list); got != want {
					t.Fatalf("%q on port %d: %q by the list, %q by the rules", sni, port, got, want)
				}
			}
		}
	}
}
