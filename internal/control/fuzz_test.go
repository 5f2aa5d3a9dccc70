package control_test

import (
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
		rules, err := egress.Compile(p)
		if err != nil {
			return
		}
		if stored, err := egress.Compile(p.WithDefaults()); err != nil {
			t.Fatalf("with its defaults the policy is refused: %v (%v)", err, stored)
		}
		for port := range uint16(3) {
			for _, rule := range rules.TLSRules(port) {
				if rule.Mode == egress.ModeClose {
					t.Fatalf("a rule that closes: %v", rule)
				}
			}
		}
	})
}
