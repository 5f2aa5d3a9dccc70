package dev

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/internal/app"
	"github.com/sluice-proxy/sluice/internal/control"
	"github.com/sluice-proxy/sluice/internal/fabric"
)

// marker is a file of a supervisor's directory, with the run that it is of. A directory without it, or of another run, is not removed:
// that may be the one of a network that is up.
const marker = "sluice-dev"

// supervisor has made a development network, and removes it. It lives as long as the command.
type supervisor struct {
	Options
	run   fabric.Run
	claim io.Closer // of the run
	token string    // of the egress gateway's management

	net      *fabric.Network
	hosts    map[string]*fabric.Namespace // by the names of the plan
	forwards []*forward
	origins  *origins
	admin    *control.Client
	died     chan *process // those that ended by themselves

	mu    sync.Mutex // guards the rest
	parts []*process // in the order in which they were started first
}

// newSupervisor checks that there is a place for a network, and makes its directory.
func newSupervisor(o Options) (*supervisor, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	if err := Check(); err != nil {
		return nil, err
	}
	if err := o.binaries(); err != nil {
		return nil, err
	}
	run, err := fabric.NewRun(o.Run)
	if err != nil {
		return nil, err
	}
	s := &supervisor{
		Options: o, run: run, hosts: map[string]*fabric.Namespace{}, died: make(chan *process, maxWorkers*4), token: newToken(),
	}
	if s.claim, err = claim(o.Run); err != nil {
		return nil, err
	}
	if err := errors.Join(adopt(), s.begin()); err != nil {
		return nil, errors.Join(err, s.claim.Close())
	}
	return s, nil
}

// begin sees that nothing is in the way, and makes the directory.
func (s *supervisor) begin() error {
	left, err := s.run.Left()
	if err != nil {
		return err
	}
	if len(left) > 0 {
		return fmt.Errorf("%w: %d things of run %s, such as %s; remove them with: sluice dev clean %[5]s", ErrLeft, len(left), s.Run, left[0], s.named())
	}
	return s.makeDir()
}

// Check is nil where development networks can be made, else ErrNeeds.
func Check() error {
	if uid := os.Getuid(); uid != 0 {
		return needs(fmt.Sprintf("this is user %d", uid))
	}
	return nil
}

func newToken() string {
	b := make([]byte, 24)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// binaries finds the executables that are not said.
func (o *Options) binaries() (err error) {
	if o.Self == "" {
		if o.Self, err = os.Executable(); err != nil {
			return err
		}
	}
	if o.Worker == "" {
		o.Worker = filepath.Join(filepath.Dir(o.Self), "sluice-worker")
	}
	for _, path := range []*string{&o.Self, &o.Worker} {
		found, err := exec.LookPath(*path)
		if err != nil {
			return fmt.Errorf("%w: %w (make build makes bin/sluice and bin/sluice-worker beside each other)", ErrOptions, err)
		}
		if *path, err = filepath.Abs(found); err != nil {
			return err
		}
	}
	info, err := os.Stat(o.Self)
	if err == nil && info.Mode()&0o005 != 0o005 {
		err = fmt.Errorf("%w: actors, which are users of their own, cannot execute this program: chmod o+rx %s", ErrOptions, o.Self)
	}
	return err
}

// makeDir makes the directory, which must be new, empty, or an earlier supervisor's of this run. On an error it is not there, or as it was.
func (s *supervisor) makeDir() error {
	entries, err := os.ReadDir(s.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if len(entries) > 0 {
		if !s.ours() {
			return fmt.Errorf("%w: the directory %s is somebody else's: it is not empty, and has no file %s of run %s", ErrOptions, s.Dir, marker, s.Run)
		}
		if err := os.RemoveAll(s.Dir); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(s.Dir, 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(s.path(marker), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600) // two that start at once do not share it
	if err != nil {
		_ = os.Remove(s.Dir) // unless something is in it
		return err
	}
	_, err = f.WriteString(s.mark())
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Mkdir(s.logs(), 0o700)
	}
	if err != nil {
		return errors.Join(err, os.RemoveAll(s.Dir))
	}
	return nil
}

// mark is what is in the marker.
func (o *Options) mark() string { return "run " + o.Run + "\n" }

// ours reports whether the directory was made by a supervisor of the run.
func (o *Options) ours() bool {
	path := filepath.Join(o.Dir, marker)
	if info, err := os.Lstat(path); err != nil || !info.Mode().IsRegular() {
		return false
	}
	text, err := os.ReadFile(path)
	return err == nil && string(text) == o.mark()
}

func (s *supervisor) path(parts ...string) string {
	return filepath.Join(append([]string{s.Dir}, parts...)...)
}
func (s *supervisor) logs() string { return s.path("logs") }

func (s *supervisor) write(name, text string) error {
	return os.WriteFile(s.path(name), []byte(text), 0o600)
}

// component is the directory of certificates of a part.
func (s *supervisor) component(name string) string { return app.ComponentDir(s.Dir, name) }

// up makes the whole network, in the order in which its parts need each other. On an error the caller closes.
func (s *supervisor) up(ctx context.Context) error {
	for _, step := range []func(context.Context) error{
		s.makeFabric, s.makeForwards, s.startAteapi, s.startOrigins, s.startEgress, s.startRouter, s.startWorkers, s.seed,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// makeFabric makes the bridge and a namespace for each part.
func (s *supervisor) makeFabric(context.Context) (err error) {
	if s.net, err = s.run.CreateNetwork(bridgeAddress); err != nil {
		return err
	}
	all := []host{ateapiHost, originsHost, egressHost, routerHost}
	for n := 1; n <= s.Workers; n++ {
		all = append(all, workerHost(n))
	}
	for _, h := range all {
		ns, err := s.net.Attach(h.name, h.addrs...)
		if err != nil {
			return err
		}
		s.hosts[h.name] = ns
		if err := ns.Up("lo"); err != nil {
			return err
		}
	}
	return nil
}

// launch starts a part and waits until check says that it is ready. One of the same name that has ended is replaced.
func (s *supervisor) launch(ctx context.Context, p program, check func(context.Context) error) error {
	part, err := launch(p, s.logs(), func(p *process) { s.died <- p })
	if err != nil {
		return err
	}
	s.mu.Lock()
	if i := slices.IndexFunc(s.parts, func(o *process) bool { return o.name == p.name }); i >= 0 {
		s.parts[i] = part
	} else {
		s.parts = append(s.parts, part)
	}
	s.mu.Unlock()
	return part.ready(ctx, check)
}

// part is the process with a name.
func (s *supervisor) part(name string) *process {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.parts, func(p *process) bool { return p.name == name })
	return s.parts[i]
}

func (s *supervisor) all() []*process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.parts)
}

// grace is what each part may take to drain, when everything ends.
const grace = 20 * time.Second

// close ends everything and removes it. The error says what did not end well, or is still there.
func (s *supervisor) close() error {
	var errs []error
	errs = append(errs, s.drain())
	for _, f := range s.forwards {
		f.close()
	}
	if s.admin != nil {
		errs = append(errs, s.admin.Close())
	}
	if s.origins != nil {
		errs = append(errs, s.origins.close())
	}
	for _, ns := range s.hosts {
		errs = append(errs, ns.Remove())
	}
	if s.net != nil {
		errs = append(errs, s.net.Remove())
	}
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	errs = append(errs, s.run.Clean(ctx)) // suspended actors are nobody's process
	reap()
	return errors.Join(append(errs, os.RemoveAll(s.Dir), s.claim.Close())...)
}

// drain ends the processes: the router first, so that nothing comes in any more, then workers with their actors, and what those
// need on their way out last.
func (s *supervisor) drain() error {
	all := s.all()
	slices.SortStableFunc(all, func(a, b *process) int { return a.leaves - b.leaves })
	var errs []error
	for len(all) > 0 {
		n := 1
		for n < len(all) && all[n].leaves == all[0].leaves {
			n++
		}
		errs = append(errs, stopAll(all[:n]))
		all = all[n:]
	}
	return errors.Join(errs...)
}

func stopAll(all []*process) error {
	errs := make([]error, len(all))
	var wg sync.WaitGroup
	for i, p := range all {
		wg.Go(func() {
			if over, _ := p.ended(); !over {
				errs[i] = p.stop(grace)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
