package control_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"github.com/sluice-proxy/sluice/api/ateapi"
	"github.com/sluice-proxy/sluice/internal/actor"
	"github.com/sluice-proxy/sluice/internal/control"
)

// roundTrip reads what there is: it is refused with a code that blames the sender, or is the same after it was written and
// read again.
func roundTrip[M proto.Message, P any](t *testing.T, raw []byte, m M, decode func(M) (P, error), encode func(P) M) {
	t.Helper()
	if proto.Unmarshal(raw, m) != nil {
		return
	}
	a, err := decode(m)
	if err != nil {
		if e := (*actor.Error)(nil); !errors.As(err, &e) || e.Code != actor.InvalidArgument && e.Code != actor.Unimplemented {
			t.Errorf("refused with %v", err)
		}
		return
	}
	b, err := decode(encode(a))
	if err != nil || cmp.Diff(a, b, sameAddr) != "" {
		t.Errorf("%v\n%s", err, cmp.Diff(a, b, sameAddr))
	}
}

func FuzzMessages(f *testing.F) {
	for _, m := range []proto.Message{
		&ateapi.Actor{
			Metadata: &ateapi.ResourceMetadata{Atespace: "demo", Name: "a", Uid: "u", Version: 3}, ActorTemplate: &ateapi.ObjectRef{Atespace: "demo", Name: "t"},
			Status: &ateapi.ActorStatus{State: 2, WorkerAssignment: &ateapi.WorkerAssignment{WorkerPodIps: []string{"10.0.0.1", "2001:db8::1"}, Worker: &ateapi.ObjectRef{Name: "w"}}},
		},
		&ateapi.Worker{Metadata: &ateapi.ResourceMetadata{Name: "w"}, Ips: []string{"10.0.0.1"}, Labels: map[string]string{"a": "b"}, Epoch: 4},
		&ateapi.ActorTemplate{Containers: []*ateapi.Container{{Name: "m", WakeupProbe: &ateapi.ContainerWakeupProbe{HttpGet: &ateapi.HTTPGetAction{Path: "/", Port: 80}, TimeoutSeconds: 5}}}, Volumes: []*ateapi.Volume{{Name: "v", SystemInfo: &ateapi.SystemInfo{}}}},
	} {
		raw, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw, "a")
	}
	f.Fuzz(func(t *testing.T, raw []byte, token string) {
		// What only the owner of an actor knows is not compared: a crash without its state, and the like.
		roundTrip(t, raw, &ateapi.Worker{}, control.DecodeWorker, control.EncodeWorker)
		roundTrip(t, raw, &ateapi.ActorTemplate{}, control.DecodeTemplate, control.EncodeTemplate)
		var a ateapi.Actor
		if proto.Unmarshal(raw, &a) == nil {
			_, _ = control.DecodeActor(&a)
		}
		if after, limit, err := control.NamePage(int32(len(raw)), token); err == nil && (after != "" && !actor.ValidName(after) || limit < 1 || limit > 1000) {
			t.Errorf("token %q: %q, %d", token, after, limit)
		}
		if after, _, err := control.RefPage(int32(len(raw)), token); err == nil && after != (actor.Ref{}) && after.Check("x") != nil {
			t.Errorf("token %q: %q", token, after)
		}
	})
}

func TestPageArguments(t *testing.T) {
	for size, want := range map[int32]int{0: 100, 1: 1, 1000: 1000, 1001: 1000, 1 << 30: 1000} {
		if _, limit, err := control.NamePage(size, ""); limit != want || err != nil {
			t.Errorf("size %d: %d, %v", size, limit, err)
		}
	}
	for _, token := range []string{"!", "QQ", "YQ==", "YS9i", "YQ\n"} { // no base64, A, padded, a/b, a with a line end
		if _, _, err := control.NamePage(1, token); err == nil {
			t.Errorf("token %q is taken", token)
		}
	}
	_, _, err := control.NamePage(-1, "")
	wantCode(t, "a negative size", err, actor.InvalidArgument)
	if ref, _, err := control.RefPage(1, "YS9i"); ref != (actor.Ref{Atespace: "a", Name: "b"}) || err != nil {
		t.Errorf("%v, %v", ref, err)
	}
}
