package api_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/sluice-proxy/sluice/api/ateapi"
	"github.com/sluice-proxy/sluice/api/atelet"
	"github.com/sluice-proxy/sluice/api/atenetx"
	"github.com/sluice-proxy/sluice/api/credprovider"
	"github.com/sluice-proxy/sluice/internal/gatewaytest"
)

var files = []protoreflect.FileDescriptor{
	ateapi.File_ateapi_actor_proto, ateapi.File_ateapi_control_proto, ateapi.File_ateapi_policy_proto,
	ateapi.File_ateapi_resource_proto, ateapi.File_ateapi_template_proto, ateapi.File_ateapi_worker_proto,
	atelet.File_atelet_support_proto, atenetx.File_atenetx_host_proto, credprovider.File_credprovider_provider_proto,
}

// TestContract compares every name, number and type with testdata/contract.txt, which nothing writes but
// people. A line that changes there breaks somebody's client or server.
func TestContract(t *testing.T) {
	var have []string
	for _, f := range files {
		have = append(have, fileLines(f)...)
	}
	text, err := os.ReadFile("testdata/contract.txt")
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			want = append(want, line)
		}
	}
	for _, line := range have {
		if !slices.Contains(want, line) {
			t.Errorf("not in the contract: %s", line)
		}
	}
	for _, line := range want {
		if !slices.Contains(have, line) {
			t.Errorf("only in the contract: %s", line)
		}
	}
}

func fileLines(f protoreflect.FileDescriptor) []string {
	var out []string
	for i := range f.Enums().Len() {
		e := f.Enums().Get(i)
		for j := range e.Values().Len() {
			v := e.Values().Get(j)
			out = append(out, fmt.Sprintf("enum %s: %s = %d", e.FullName(), v.Name(), v.Number()))
		}
	}
	for i := range f.Messages().Len() {
		out = append(out, messageLine(f.Messages().Get(i)))
	}
	for i := range f.Services().Len() {
		methods := f.Services().Get(i).Methods()
		for j := range methods.Len() {
			m := methods.Get(j)
			line := fmt.Sprintf("rpc /%s/%s: %s -> %s", m.Parent().FullName(), m.Name(), m.Input().FullName(), m.Output().FullName())
			if m.IsStreamingClient() || m.IsStreamingServer() {
				line += " stream"
			}
			out = append(out, line)
		}
	}
	return out
}

func messageLine(m protoreflect.MessageDescriptor) string {
	var fields []string
	for i := range m.Fields().Len() {
		f := m.Fields().Get(i)
		text := fmt.Sprintf("%s=%d %s", f.Name(), f.Number(), fieldType(m, f))
		if o := f.ContainingOneof(); o != nil {
			text += " (" + string(o.Name()) + ")"
		}
		fields = append(fields, text)
	}
	for i := range m.ReservedRanges().Len() {
		fields = append(fields, fmt.Sprintf("reserved %d", m.ReservedRanges().Get(i)[0]))
	}
	return strings.TrimSpace(fmt.Sprintf("%s: %s", m.FullName(), strings.Join(fields, ", ")))
}

// fieldType writes types as the contract does: names of the same package without it, timestamps in short, repeated
// fields with an asterisk.
func fieldType(m protoreflect.MessageDescriptor, f protoreflect.FieldDescriptor) string {
	name := f.Kind().String()
	switch {
	case f.IsMap():
		return fmt.Sprintf("map<%s,%s>", f.MapKey().Kind(), f.MapValue().Kind())
	case f.Message() != nil:
		name = string(f.Message().FullName())
	case f.Enum() != nil:
		name = string(f.Enum().FullName())
	}
	name = strings.TrimPrefix(name, string(m.ParentFile().Package())+".")
	name = strings.TrimPrefix(name, "google.protobuf.")
	if f.IsList() {
		return "*" + name
	}
	return name
}

// TestPeers decodes what peers send, some of them of earlier generations.
func TestPeers(t *testing.T) {
	// Field 5 as the single string that it was.
	var w ateapi.WorkerAssignment
	if err := proto.Unmarshal([]byte("\x1a\x01p\x2a\x0810.0.0.5"), &w); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(w.GetWorkerPodIps(), []string{"10.0.0.5"}) || w.GetWorkerPod() != "p" || w.GetWorkerSpiffeId() != "" {
		t.Errorf("the assignment of a single address reads %v", &w)
	}
	// A request to resume with the field boot.
	var r ateapi.ResumeActorRequest
	if err := proto.Unmarshal([]byte("\x0a\x09\x0a\x04demo\x12\x01a\x10\x01"), &r); err != nil {
		t.Fatal(err)
	}
	if r.GetActor().GetAtespace() != "demo" || r.GetActor().GetName() != "a" {
		t.Errorf("the request with boot reads %v", &r)
	}
	// Where a trust bundle goes and which ones it has: 2 and 3, as published.
	var b ateapi.TrustBundleSource
	if err := proto.Unmarshal([]byte("\x12\x02/p\x1a\x01n"), &b); err != nil {
		t.Fatal(err)
	}
	if b.GetPath() != "/p" || !slices.Equal(b.GetNames(), []string{"n"}) {
		t.Errorf("the source of a trust bundle reads %v", &b)
	}
	// What is not understood of a snapshot is passed on.
	in := []byte("\x0a\x01s\x12\x02n1\x18\x01")
	var s ateapi.LocalSnapshot
	if err := proto.Unmarshal(in, &s); err != nil {
		t.Fatal(err)
	}
	out, err := proto.Marshal(&s)
	if err != nil || s.GetSnapshotName() != "s" || !slices.Equal(in, out) {
		t.Errorf("a snapshot of another layout becomes %q (%v), want %q", out, err, in)
	}
}

// protocVersion is the one line that depends on the installed compiler and on nothing that we write.
var protocVersion = regexp.MustCompile(`(?m)^// (\t|- )protoc .*\n`)

// TestGeneratedCode generates the Go code again and compares it with what is here.
func TestGeneratedCode(t *testing.T) {
	gatewaytest.Peer(t, "protoc")
	dir := t.TempDir()
	if out, err := exec.Command("../tools/protos.sh", dir).CombinedOutput(); err != nil {
		t.Fatalf("tools/protos.sh: %v\n%s", err, out)
	}
	made, err := filepath.Glob(filepath.Join(dir, "*", "*.pb.go"))
	if err != nil {
		t.Fatal(err)
	}
	here, err := filepath.Glob("*/*.pb.go")
	if err != nil {
		t.Fatal(err)
	}
	if len(made) == 0 || len(made) != len(here) {
		t.Errorf("%d files are generated, %d are here", len(made), len(here))
	}
	for _, file := range made {
		rel, _ := filepath.Rel(dir, file)
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		have, err := os.ReadFile(rel)
		if err != nil {
			t.Error(err)
			continue
		}
		if protocVersion.ReplaceAllString(string(have), "") != protocVersion.ReplaceAllString(string(want), "") {
			t.Errorf("api/%s is not what tools/protos.sh makes of the .proto files: run it", filepath.ToSlash(rel))
		}
	}
}
