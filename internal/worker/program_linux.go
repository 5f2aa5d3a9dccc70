package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/fabric"
)

// Program is what an actor executes, and what it has besides the machine's programs and libraries.
type Program struct {
	Path   string   // of the executable, as the actor sees it
	Args   []string // after the path
	Env    []string // all of it, name=value
	User   uint32   // user and group identifier, of this actor alone; not 0
	Limits fabric.Limits
	Hosts  []Host
	Mounts []Mount
	// Output takes standard output and error; nil discards. The actor can write all of a file up to 64 MiB.
	Output *os.File `json:"-"`
}

// Host is a name that the actor can resolve. It knows no others.
type Host struct {
	Name    string
	Address netip.Addr
}

// Mount shows the actor a file or directory of the machine.
type Mount struct {
	From     string // absolute
	To       string // absolute, as the actor sees it; beside what actors have anyway, and beside other mounts
	Writable bool
}

// ErrProgram is a program that cannot be an actor's.
var ErrProgram = errors.New("not a program for an actor")

// minProcesses leaves a process that becomes an actor the threads that it has before it does.
const minProcesses = 16

// Check returns what is wrong with a program.
func (p *Program) Check() error {
	var errs []error
	wrong := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%w: "+format, append([]any{ErrProgram}, args...)...))
	}
	if !filepath.IsAbs(p.Path) {
		wrong("path %q is not absolute", p.Path)
	}
	if p.User == 0 || p.User >= 1<<31 {
		wrong("user %d is not between 1 and %d", p.User, 1<<31-1)
	}
	if p.Limits.Processes < minProcesses {
		wrong("limit of %d processes is below %d", p.Limits.Processes, minProcesses)
	}
	if p.Limits.Memory < 0 {
		wrong("limit of %d bytes", p.Limits.Memory)
	}
	if slices.ContainsFunc(slices.Concat(p.Args, p.Env), func(s string) bool { return strings.Contains(s, "\x00") }) {
		wrong("an argument or a variable of the environment contains a zero byte")
	}
	for _, h := range p.Hosts {
		if !h.Address.IsValid() || h.Name == "" || strings.ContainsAny(h.Name, " \t\r\n#") {
			wrong("host %q with address %s", h.Name, h.Address)
		}
	}
	for i, m := range p.Mounts {
		first, _, _ := strings.Cut(strings.TrimPrefix(m.To, "/"), "/")
		taken := slices.Contains(systemDirs, first) || slices.Contains([]string{"", "dev", "etc", "proc", "run", "sys", "tmp"}, first)
		// What is mounted may hold links, which would lead whoever makes a place inside out of the actor's file system.
		taken = taken || slices.ContainsFunc(p.Mounts[:i], func(o Mount) bool { return below(m.To, o.To) || below(o.To, m.To) })
		if !filepath.IsAbs(m.From) || !filepath.IsAbs(m.To) || filepath.Clean(m.To) != m.To || taken {
			wrong("mount of %q at %q", m.From, m.To)
		}
	}
	return errors.Join(errs...)
}

func below(path, dir string) bool { return strings.HasPrefix(path+"/", dir+"/") }

// start starts a program as the actor of a network, in a group. When it returns without an error the program runs, with
// nothing of what the calling process may do.
func (p *Program) start(ctx context.Context, hostname string, n *Network, g *fabric.Group) (*process, error) {
	if err := p.Check(); err != nil {
		return nil, err
	}
	s, err := p.stage(n, g)
	if err != nil {
		return nil, fmt.Errorf("starting a process for an actor: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = s.cmd.Process.Kill() })
	defer stop()
	if err := s.instruct(order{Hostname: hostname, Program: *p}, g); err != nil {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, fmt.Errorf("confining an actor: %w", err)
	}
	started := &process{pid: s.cmd.Process.Pid, ended: make(chan struct{})}
	go started.reap(s.cmd)
	return started, nil
}

// stage is a process that is to become an actor.
type stage struct {
	cmd    *exec.Cmd
	orders io.WriteCloser
	report io.ReadCloser
}

func (p *Program) stage(n *Network, g *fabric.Group) (*stage, error) {
	orders, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	out, report, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, orders.Close(), in.Close())
	}
	s := &stage{orders: in, report: out}
	s.cmd = &exec.Cmd{
		Path: "/proc/self/exe", Args: []string{stageName}, Env: []string{"LANG=C"}, Dir: "/",
		ExtraFiles: []*os.File{orders, report},
		SysProcAttr: &syscall.SysProcAttr{
			Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP,
			Setsid:     true,
		},
	}
	if p.Output != nil {
		s.cmd.Stdout, s.cmd.Stderr = p.Output, p.Output
	}
	done, err := g.Attach(s.cmd.SysProcAttr)
	if err == nil {
		err = errors.Join(n.Actor.Start(s.cmd), done())
	}
	err = errors.Join(err, orders.Close(), report.Close())
	if err != nil {
		return nil, errors.Join(err, in.Close(), out.Close())
	}
	return s, nil
}

// instruct tells the stage what to become, sets the limits of its group once it has no privileges any more, and returns
// when it has become that.
func (s *stage) instruct(o order, g *fabric.Group) error {
	defer s.orders.Close()
	defer s.report.Close()
	text, err := json.Marshal(o)
	if err != nil {
		return err
	}
	if _, err := s.orders.Write(text); err != nil {
		return err
	}
	if err := s.expect(ready); err != nil {
		return err
	}
	if err := g.Join(s.cmd.Process.Pid); err != nil {
		return err
	}
	if _, err := s.orders.Write([]byte{goOn}); err != nil {
		return err
	}
	return s.expect(0)
}

// maxReport bounds what is read of a stage that failed.
const maxReport = 4096

// expect reads a byte, or the end of the reports for 0. Anything else is an error's text.
func (s *stage) expect(b byte) error {
	first := make([]byte, 1)
	switch _, err := io.ReadFull(s.report, first); {
	case errors.Is(err, io.EOF) && b == 0:
		return nil
	case errors.Is(err, io.EOF):
		return errors.New("the process ended without a report")
	case err != nil:
		return err
	case b != 0 && first[0] == b:
		return nil
	}
	rest, err := io.ReadAll(io.LimitReader(s.report, maxReport))
	return errors.Join(errors.New(string(first)+string(rest)), err)
}
