package atelet

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"

	"github.com/sluice-proxy/sluice/internal/actor"
)

// The messages of a worker's socket of orders, as far as they are used here. Their other end is package worker, which
// is not linked, since this process has no business with the kernel's tables; a test compares the two.

type workerAbout struct {
	Run     string
	Epoch   int64
	Slots   int
	Gateway string
}

type workerActor struct{ Ref, UID string }

type workerStay struct {
	workerActor
	User  uint32
	Ready bool
}

type workerEnded struct {
	workerActor
	How string
}

type workerLimits struct {
	Processes int
	Memory    int64
}

type workerHost struct {
	Name    string
	Address netip.Addr
}

type workerMount struct {
	From, To string
	Writable bool
}

type workerProgram struct {
	Path   string
	Args   []string
	Env    []string
	User   uint32
	Limits workerLimits
	Hosts  []workerHost
	Mounts []workerMount
}

type workerProbe struct {
	Port    uint16
	Path    string
	Seconds int
}

type workerOrder struct {
	workerActor
	Program workerProgram
	Probe   workerProbe
	Thaw    bool
	Output  string
}

// Codes of the worker's refusals that mean something here.
const (
	codeStale  = "not_active"
	codeActive = "already_active"
	codeSlots  = "no_slot"
	codeClosed = "shutting_down"
	// codeCertificate is a key that was not certified, and may be the next time.
	codeCertificate = "not_certified"
)

// refused is an order that the worker did not carry out.
type refused struct{ code, text string }

func (r *refused) Error() string { return r.text }

// codeOf is the code of a refusal; empty of everything else.
func codeOf(err error) string {
	if r := (*refused)(nil); errors.As(err, &r) {
		return r.code
	}
	return ""
}

// maxAnswer bounds what is read of a worker's answer, in bytes.
const maxAnswer = 4 << 20

// orders are the worker's, over its Unix socket. Every call is bounded by its context.
type orders struct{ http *http.Client }

func newOrders(socket string) *orders {
	return &orders{&http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}}}
}

func (o *orders) about(ctx context.Context) (a workerAbout, err error) {
	err = o.ask(ctx, http.MethodGet, "worker", nil, &a)
	if err == nil && (a.Epoch == 0 || a.Slots < 1 || a.Run == "") {
		err = errors.New("its answer says neither run nor epoch: it is another version")
	}
	return a, err
}

func (o *orders) stays(ctx context.Context) (all []workerStay, err error) {
	return all, o.ask(ctx, http.MethodGet, "actors", nil, &all)
}

// ended waits for actors that end by themselves. It fails when the worker has begun anew.
func (o *orders) ended(ctx context.Context, epoch int64) (all []workerEnded, err error) {
	return all, o.ask(ctx, http.MethodGet, "ended?epoch="+strconv.FormatInt(epoch, 10), nil, &all)
}

func (o *orders) activate(ctx context.Context, order workerOrder) error {
	return o.ask(ctx, http.MethodPost, "activate", order, nil)
}

func (o *orders) suspend(ctx context.Context, uid string) error {
	return o.ask(ctx, http.MethodPost, "suspend", map[string]string{"UID": uid}, nil)
}

func (o *orders) terminate(ctx context.Context, uid string) error {
	return o.ask(ctx, http.MethodPost, "terminate", map[string]string{"UID": uid}, nil)
}

// ask gives one order. An error that is no refusal of the worker's wraps actor.ErrUnavailable: it is not known what has
// become of the order.
func (o *orders) ask(ctx context.Context, method, what string, body, answer any) error {
	var from io.Reader // nil for a question: a body that nobody reads would hide that we hang up
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return err
		}
		from = bytes.NewReader(text)
	}
	request, err := http.NewRequestWithContext(ctx, method, "http://worker/v1/"+what, from)
	if err != nil {
		return err
	}
	response, err := o.http.Do(request)
	if err != nil {
		return unanswered(err)
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return unanswered(err)
	}
	if response.StatusCode >= 300 {
		var r struct{ Error, Code string }
		if json.Unmarshal(text, &r) != nil || r.Code == "" {
			return unanswered(fmt.Errorf("answered %s: %.200q", response.Status, text))
		}
		return &refused{r.Code, r.Error}
	}
	if answer == nil {
		return nil
	}
	if err := json.Unmarshal(text, answer); err != nil {
		return unanswered(err)
	}
	return nil
}

func unanswered(err error) error {
	return fmt.Errorf("the worker's process: %w: %w", err, actor.ErrUnavailable)
}
