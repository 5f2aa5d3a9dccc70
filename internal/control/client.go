package control

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/sluice-proxy/sluice/api/ateapi"
	"github.com/sluice-proxy/sluice/api/atenetx"
	"github.com/sluice-proxy/sluice/internal/actor"
	"github.com/sluice-proxy/sluice/internal/egress"
)

var _ actor.Control = (*Client)(nil)

// Client calls a control plane. It has one connection, made at the first call and again when it is lost; nothing is tried
// again by itself. Errors are *actor.Error. Its methods are safe for concurrent use; the caller closes it.
type Client struct {
	conn    *grpc.ClientConn
	control ateapi.ControlClient
	worker  ateapi.WorkerServiceClient
	host    atenetx.HostClient
}

// NewClient makes a client of the control plane at a target, host:port. The TLS configuration shows our certificate and verifies
// the server's. Proxies of the environment are not used.
func NewClient(target string, c *tls.Config) (*Client, error) {
	retry := backoff.DefaultConfig
	retry.BaseDelay, retry.MaxDelay = 100*time.Millisecond, 5*time.Second
	conn, err := grpc.NewClient(target,
		grpc.WithTransportCredentials(credentials.NewTLS(c)), grpc.WithNoProxy(), grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)), grpc.WithMaxHeaderListSize(maxHeaders),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: retry, MinConnectTimeout: 5 * time.Second}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}),
	)
	if err != nil {
		return nil, fmt.Errorf("the control plane at %q: %w", target, err)
	}
	return &Client{conn: conn, control: ateapi.NewControlClient(conn), worker: ateapi.NewWorkerServiceClient(conn), host: atenetx.NewHostClient(conn)}, nil
}

// maxAnswer bounds an answer, in bytes: a page of small records, or of a few large ones.
const maxAnswer = 64 << 20

// Close ends the connection, and calls that are under way with it.
func (c *Client) Close() error { return c.conn.Close() }

// refusal makes an error of the wire one of ours.
func refusal(err error) error {
	if err == nil {
		return nil
	}
	s := status.Convert(err)
	code := actor.Code(s.Code())
	if s.Code() > codes.Unauthenticated {
		code = actor.Unknown
	}
	return &actor.Error{Code: code, Text: s.Message(), Err: err}
}

// read translates an answer.
func read[M, P any](decode func(M) (P, error), m M, err error) (out P, _ error) {
	if err != nil {
		return out, refusal(err)
	}
	out, err = decode(m)
	if err != nil {
		return out, &actor.Error{Code: actor.Internal, Text: fmt.Sprintf("%v: %v", actor.ErrAnswer, err), Err: fmt.Errorf("%w: %w", actor.ErrAnswer, err)}
	}
	return out, nil
}

// CreateActor makes an actor.
func (c *Client) CreateActor(ctx context.Context, ref, template actor.Ref, selector map[string]string) (actor.Actor, error) {
	m, err := c.control.CreateActor(ctx, &ateapi.CreateActorRequest{Actor: &ateapi.Actor{
		Metadata: encodeMeta(ref, actor.Meta{}), ActorTemplate: encodeRef(template), WorkerSelector: encodeSelector(selector),
	}})
	return read(decodeActor, m, err)
}

// GetActor reads an actor and changes nothing.
func (c *Client) GetActor(ctx context.Context, ref actor.Ref) (actor.Actor, error) {
	m, err := c.control.GetActor(ctx, &ateapi.GetActorRequest{Actor: encodeRef(ref)})
	return read(decodeActor, m, err)
}

// UpdateActor gives an actor another template and other labels.
func (c *Client) UpdateActor(ctx context.Context, ref, template actor.Ref, selector map[string]string, t actor.Terms) (actor.Actor, error) {
	m, err := c.control.UpdateActor(ctx, &ateapi.UpdateActorRequest{Actor: &ateapi.Actor{
		Metadata: encodeMeta(ref, actor.Meta{UID: t.UID, Version: t.Version}), ActorTemplate: encodeRef(template), WorkerSelector: encodeSelector(selector),
	}})
	return read(decodeActor, m, err)
}

// ResumeActor makes an actor run, and reports whether this call did. An answer that names no worker is Internal.
func (c *Client) ResumeActor(ctx context.Context, ref actor.Ref) (actor.Actor, bool, error) {
	m, err := c.control.ResumeActor(ctx, &ateapi.ResumeActorRequest{Actor: encodeRef(ref)})
	a, err := read(decodeActor, m.GetActor(), err)
	if err == nil && (a.Ref != ref || a.Assignment == nil || len(a.Assignment.Addrs) == 0) {
		err = actor.Refuse(actor.Internal, "%v: it does not say where actor %s is", actor.ErrAnswer, ref)
	}
	return a, m.GetResumed(), err
}

// SuspendActor ends an actor and keeps it where every worker can resume it.
func (c *Client) SuspendActor(ctx context.Context, ref actor.Ref) (actor.Actor, error) {
	m, err := c.control.SuspendActor(ctx, &ateapi.SuspendActorRequest{Actor: encodeRef(ref)})
	return read(decodeActor, m.GetActor(), err)
}

// PauseActor ends an actor and keeps it on its node.
func (c *Client) PauseActor(ctx context.Context, ref actor.Ref) (actor.Actor, error) {
	m, err := c.control.PauseActor(ctx, &ateapi.PauseActorRequest{Actor: encodeRef(ref)})
	return read(decodeActor, m.GetActor(), err)
}

// RevertActor drops what an actor has done since it was suspended last, or its crash.
func (c *Client) RevertActor(ctx context.Context, ref actor.Ref) (actor.Actor, error) {
	m, err := c.control.RevertActor(ctx, &ateapi.RevertActorRequest{Actor: encodeRef(ref)})
	return read(decodeActor, m.GetActor(), err)
}

// DeleteActor forgets an actor and its policy.
func (c *Client) DeleteActor(ctx context.Context, ref actor.Ref, t actor.Terms) (actor.Actor, error) {
	m, err := c.control.DeleteActor(ctx, &ateapi.DeleteActorRequest{Actor: encodeRef(ref), AnyState: t.AnyState, Options: encodeOptions(t)})
	return read(decodeActor, m, err)
}

func encodeOptions(t actor.Terms) *ateapi.DeleteOptions {
	return &ateapi.DeleteOptions{Uid: t.UID, Version: t.Version}
}

// ListActors lists the actors of an atespace, or with an empty one all.
func (c *Client) ListActors(ctx context.Context, atespace string) ([]actor.Actor, error) {
	return list(func(token string) ([]*ateapi.Actor, string, error) {
		m, err := c.control.ListActors(ctx, &ateapi.ListActorsRequest{Atespace: atespace, PageSize: clientPage, PageToken: token})
		return m.GetActors(), m.GetNextPageToken(), err
	}, decodeActor)
}

const (
	clientPage = 200
	// maxListed bounds what a list returns.
	maxListed = 100_000
)

// list asks for page after page.
func list[M, P any](page func(token string) ([]M, string, error), decode func(M) (P, error)) ([]P, error) {
	var out []P
	for token := ""; ; {
		ms, next, err := page(token)
		if err != nil {
			return nil, refusal(err)
		}
		for _, m := range ms {
			p, err := read(decode, m, nil)
			if err != nil {
				return nil, err
			}
			out = append(out, p)
		}
		if next == "" {
			return out, nil
		}
		if next == token || len(out) > maxListed {
			return nil, actor.Refuse(actor.Internal, "an answer that cannot be used: a list without end")
		}
		token = next
	}
}

// CreatePolicy makes an actor's policy.
func (c *Client) CreatePolicy(ctx context.Context, ref actor.Ref, p egress.Policy) (egress.Kept, error) {
	m, err := c.control.CreateActorEgressPolicy(ctx, &ateapi.CreateActorEgressPolicyRequest{Actor: encodeRef(ref), EgressPolicy: encodePolicy(egress.Kept{Policy: p})})
	return read(decodeKept, m, err)
}

// GetPolicy reads an actor's policy. One that holds a field that is not known is an error that wraps actor.Faults, with the
// code Internal: nothing of it may be used.
func (c *Client) GetPolicy(ctx context.Context, ref actor.Ref) (egress.Kept, error) {
	m, err := c.control.GetActorEgressPolicy(ctx, &ateapi.GetActorEgressPolicyRequest{Actor: encodeRef(ref)})
	return read(decodeKept, m, err)
}

// UpdatePolicy replaces an actor's policy.
func (c *Client) UpdatePolicy(ctx context.Context, ref actor.Ref, p egress.Policy, t actor.Terms) (egress.Kept, error) {
	k := egress.Kept{Policy: p, Meta: actor.Meta{UID: t.UID, Version: t.Version}}
	m, err := c.control.UpdateActorEgressPolicy(ctx, &ateapi.UpdateActorEgressPolicyRequest{Actor: encodeRef(ref), EgressPolicy: encodePolicy(k)})
	return read(decodeKept, m, err)
}

// DeletePolicy forgets an actor's policy.
func (c *Client) DeletePolicy(ctx context.Context, ref actor.Ref, t actor.Terms) (egress.Kept, error) {
	m, err := c.control.DeleteActorEgressPolicy(ctx, &ateapi.DeleteActorEgressPolicyRequest{Actor: encodeRef(ref), Options: encodeOptions(t)})
	return read(decodeKept, m, err)
}

// ended reports whether an error of a stream is its end and nothing worse.
func ended(err error) bool { return errors.Is(err, io.EOF) }
