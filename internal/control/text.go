package control

import (
	"bytes"
	"encoding/json"
	"fmt"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/sluice-proxy/sluice/api/ateapi"
	"github.com/sluice-proxy/sluice/internal/actor"
	"github.com/sluice-proxy/sluice/internal/egress"
)

// What is in this file reads and writes messages as people and programs see them: JSON with the names of the wire.

// maxFile bounds a text, in bytes.
const maxFile = 1 << 20

// ParsePolicy reads a policy for an actor, such as {"rules":[{"https":{"hostnames":["api.example.com"]}}]}. A member that is not known
// is an error, and so is a policy that the control plane would refuse. The metadata may be left out.
func ParsePolicy(text []byte, ref actor.Ref) (egress.Policy, error) {
	m := &ateapi.EgressPolicy{}
	if err := parse(text, m); err != nil {
		return egress.Policy{}, err
	}
	if m.GetMetadata() == nil {
		m.Metadata = &ateapi.ResourceMetadata{}
	}
	if m.GetMetadata().GetName() == "" {
		m.Metadata.Name = egress.PolicyName
	}
	if m.GetMetadata().GetAtespace() == "" {
		m.Metadata.Atespace = ref.Atespace
	}
	p, err := DecodePolicy("egress_policy", m)
	if err != nil {
		return p, err
	}
	return p, p.Validate("egress_policy", ref.Atespace)
}

// ParseTemplate reads a template, which is to be called ref, such as {"containers":[{"name":"main","image":"local:echo"}]}. A
// member that is not known is an error, and so is a template that the control plane would refuse.
func ParseTemplate(text []byte, ref actor.Ref) (actor.Template, error) {
	m := &ateapi.ActorTemplate{}
	if err := parse(text, m); err != nil {
		return actor.Template{}, err
	}
	t, err := decodeTemplate(m)
	t.Ref, t.Meta = ref, actor.Meta{}
	if err != nil {
		return t, err
	}
	return t, t.Check("actor_template")
}

func parse(text []byte, m proto.Message) error {
	if len(text) > maxFile {
		return fmt.Errorf("%d bytes, at most %d are allowed", len(text), maxFile)
	}
	return protojson.Unmarshal(text, m)
}

// JSON writes what a Client returns, indented: an actor.Actor, actor.Worker, actor.Template, actor.Named or egress.Kept.
func JSON(v any) ([]byte, error) {
	var m proto.Message
	switch v := v.(type) {
	case actor.Actor:
		m = encodeActor(v)
	case actor.Worker:
		m = encodeWorker(v)
	case actor.Template:
		m = encodeTemplate(v)
	case actor.Named:
		m = encodeAtespace(v)
	case egress.Kept:
		m = encodePolicy(v)
	default:
		return nil, fmt.Errorf("no message for a %T", v)
	}
	text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer // its own blanks change from build to build, on purpose
	err = json.Indent(&out, text, "", "  ")
	return out.Bytes(), err
}
