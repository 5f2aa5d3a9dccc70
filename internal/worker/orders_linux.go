package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"
)

// Order is an activation as it is asked for on the socket of orders: a Spec, and where the program's output goes.
type Order struct {
	Spec
	Output string // absolute path of a file that output is appended to; "" discards it
}

// Ended is an actor that ended by itself.
type Ended struct {
	Actor
	How string
}

// About is what whoever gives orders has to know of a worker.
type About struct {
	Run     string
	Epoch   int64  // another one for each process
	Slots   int    // actors at a time
	Gateway string // host:port where what actors dial is carried; "" it is reset
}

// Codes of refused orders. They never change.
const (
	codeOrder  = "bad_order" // what was asked for can never be done
	codeStale  = "not_active"
	codeActive = "already_active"
	codeSlots  = "no_slot"
	codeNotUp  = "not_ready"
	codeClosed = "shutting_down"
	codeEpoch  = "other_epoch"
	codeKey    = "not_certified" // which passes by itself
	codeFailed = "failed"
)

const (
	maxOrder     = 1 << 20          // bytes
	maxEnded     = 1024             // kept while nobody asks; the oldest are dropped
	orderTimeout = 10 * time.Second // for the head of an order
	activateTime = 2 * time.Minute  // besides what its order gives the probe
)

// Orders serves a worker's orders: JSON by HTTP, over a Unix socket that its user alone may use. There is no other
// authentication, since whoever is that user can do all of it anyway.
type Orders struct {
	about About
	w     *Worker

	mu    sync.Mutex // guards all below
	ended []Ended
	news  chan struct{} // closed with the next that ends
}

// NewOrders returns orders without a worker, whose Exited it is to be made with; Serve gives it one. gateway is told to who asks.
func NewOrders(gateway string) *Orders {
	return &Orders{about: About{Epoch: time.Now().UnixNano(), Gateway: gateway}, news: make(chan struct{})}
}

// Exited keeps what ended until somebody asks; for Options.
func (o *Orders) Exited(a Actor, how string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.ended) >= maxEnded {
		o.ended = o.ended[1:]
	}
	o.ended = append(o.ended, Ended{a, how})
	close(o.news)
	o.news = make(chan struct{})
}

// Listen makes the socket, with mode 0600. What a killed process has left at the path is replaced; a socket that
// somebody listens at is an error.
func Listen(path string) (net.Listener, error) {
	if c, err := net.Dial("unix", path); err == nil {
		_ = c.Close()
		return nil, fmt.Errorf("%s is in use by another process", path)
	}
	info, err := os.Lstat(path)
	if err == nil && info.Mode()&fs.ModeSocket == 0 {
		return nil, fmt.Errorf("%s exists and is no socket", path)
	}
	if err == nil {
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// Serve obeys until ctx ends. Then activations under way are given up, and other orders finish.
func (o *Orders) Serve(ctx context.Context, l net.Listener, w *Worker) error {
	o.w, o.about.Run, o.about.Slots = w, w.o.Run.String(), w.o.Slots
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/activate", func(rw http.ResponseWriter, r *http.Request) { o.activate(ctx, rw, r) })
	mux.HandleFunc("POST /v1/suspend", func(rw http.ResponseWriter, r *http.Request) { o.byUID(rw, r, w.Suspend) })
	mux.HandleFunc("POST /v1/terminate", func(rw http.ResponseWriter, r *http.Request) { o.byUID(rw, r, w.Terminate) })
	mux.HandleFunc("GET /v1/worker", func(rw http.ResponseWriter, _ *http.Request) { answer(rw, o.about) })
	mux.HandleFunc("GET /v1/actors", func(rw http.ResponseWriter, _ *http.Request) { answer(rw, w.Actors()) })
	mux.HandleFunc("GET /v1/counts", func(rw http.ResponseWriter, _ *http.Request) { answer(rw, w.Counts().Values()) })
	mux.HandleFunc("GET /v1/ended", func(rw http.ResponseWriter, r *http.Request) { o.report(ctx, rw, r) })
	server := &http.Server{Handler: mux, ReadHeaderTimeout: orderTimeout, MaxHeaderBytes: 16 << 10}
	stopped := make(chan error, 1)
	go func() {
		<-ctx.Done()
		stopped <- server.Shutdown(context.WithoutCancel(ctx))
	}()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return <-stopped
}

func (o *Orders) activate(serving context.Context, rw http.ResponseWriter, r *http.Request) {
	var order Order
	if !decode(rw, r, &order) {
		return
	}
	if err := order.Program.Check(); err != nil && !order.Thaw {
		refuse(rw, err)
		return
	}
	if order.Output != "" {
		if !filepath.IsAbs(order.Output) {
			refuse(rw, fmt.Errorf("%w: output %q is not absolute", ErrProgram, order.Output))
			return
		}
		f, err := os.OpenFile(order.Output, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
		if err != nil {
			refuse(rw, err)
			return
		}
		defer f.Close() // the process has its own
		order.Program.Output = f
	}
	ctx, cancel := context.WithTimeout(r.Context(), activateTime+time.Duration(max(order.Probe.Seconds, 0))*time.Second)
	defer cancel()
	defer context.AfterFunc(serving, cancel)()
	if err := o.w.Activate(ctx, order.Spec); err != nil {
		refuse(rw, err)
		return
	}
	rw.WriteHeader(http.StatusNoContent)
}

func (o *Orders) byUID(rw http.ResponseWriter, r *http.Request, do func(ctx context.Context, uid string) error) {
	var a Actor
	if !decode(rw, r, &a) {
		return
	}
	// Half of it would be worse than either: what has begun is finished though nobody waits.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), o.w.o.SuspendDrain+cleaning)
	defer cancel()
	if err := do(ctx, a.UID); err != nil {
		refuse(rw, err)
		return
	}
	rw.WriteHeader(http.StatusNoContent)
}

// errEpoch is a question to a process that is not there any more.
var errEpoch = errors.New("this worker has another epoch")

// report answers with what has ended since the last time, as soon as there is something. Who names an epoch hears of no other.
func (o *Orders) report(ctx context.Context, rw http.ResponseWriter, r *http.Request) {
	if e := r.FormValue("epoch"); e != "" && e != strconv.FormatInt(o.about.Epoch, 10) {
		refuse(rw, errEpoch)
		return
	}
	for {
		o.mu.Lock()
		ended, news := o.ended, o.news
		o.ended = nil
		o.mu.Unlock()
		if len(ended) > 0 {
			answer(rw, ended)
			return
		}
		select {
		case <-news:
		case <-r.Context().Done():
			return
		case <-ctx.Done():
			refuse(rw, ErrClosed)
			return
		}
	}
}

func decode(rw http.ResponseWriter, r *http.Request, into any) bool {
	d := json.NewDecoder(http.MaxBytesReader(rw, r.Body, maxOrder))
	d.DisallowUnknownFields()
	err := d.Decode(into)
	if err == nil { // to the end of the body, too: only then is it noticed that whoever asks hangs up
		if _, end := d.Token(); !errors.Is(end, io.EOF) {
			err = errors.New("more than one order")
		}
	}
	if err != nil {
		refuse(rw, fmt.Errorf("%w: %w", ErrProgram, err))
		return false
	}
	return true
}

func answer(rw http.ResponseWriter, v any) {
	rw.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(rw).Encode(v)
}

// refuse answers with what went wrong. Whoever gives orders may know everything.
func refuse(rw http.ResponseWriter, err error) {
	status, code := http.StatusInternalServerError, codeFailed
	for _, known := range []struct {
		err    error
		status int
		code   string
	}{
		{ErrProgram, http.StatusBadRequest, codeOrder},
		{ErrStale, http.StatusNotFound, codeStale},
		{ErrActive, http.StatusConflict, codeActive},
		{ErrSlots, http.StatusServiceUnavailable, codeSlots},
		{ErrClosed, http.StatusServiceUnavailable, codeClosed},
		{errEpoch, http.StatusConflict, codeEpoch},
		{ErrNotUp, http.StatusGatewayTimeout, codeNotUp},
		{ErrNoKey, http.StatusServiceUnavailable, codeKey},
	} {
		if errors.Is(err, known.err) {
			status, code = known.status, known.code
			break
		}
	}
	rw.Header().Set("Content-Type", "application/json")
	rw.WriteHeader(status)
	_ = json.NewEncoder(rw).Encode(map[string]string{"error": err.Error(), "code": code})
}
