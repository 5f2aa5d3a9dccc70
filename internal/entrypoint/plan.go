package entrypoint

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/internal/drain"
)

// BindError says which entrypoint could not be bound, where, and why.
type BindError struct {
	Entrypoint string
	Address    string
	Err        error
}

// Error names the entrypoint, the address and the cause.
func (e *BindError) Error() string {
	return fmt.Sprintf("entrypoint %s: binding %s: %v", e.Entrypoint, e.Address, e.Err)
}

// Unwrap is the cause.
func (e *BindError) Unwrap() error { return e.Err }

// Plan is a change of a Set under way: prepared, and then aborted, or committed and then reverted or finished. A call
// out of this order, or repeated, does nothing. The set itself ends a plan that is under way when it is drained.
type Plan struct {
	set      *Set
	next     map[string]*binding
	opts     map[*binding]*Options // of next
	prev     map[string]*binding
	prevOpts map[*binding]*Options // of those in both
	created  []*socket

	packets, prevPackets map[string]*packets // UDP sockets by entrypoint

	mu    sync.Mutex // guards stage, and is held for the whole of a step
	stage stage
}

type stage uint8

const (
	prepared stage = iota
	committed
	settled
)

// Prepare binds what is wanted and not bound yet. Nothing that clients of the present entrypoints see changes. When
// anything cannot be bound the result is every error, as BindErrors joined, and nothing stays bound. An entrypoint
// that keeps its name and address keeps its connections; one that changes its name, or trades its address with
// another, takes the socket over with the connections that wait in it.
func (s *Set) Prepare(ctx context.Context, wanted map[string]*Options) (*Plan, error) {
	s.mu.Lock()
	switch {
	case s.stopped:
		s.mu.Unlock()
		return nil, ErrStopped
	case s.busy || s.plan != nil:
		s.mu.Unlock()
		return nil, ErrBusy
	}
	s.busy = true
	p := &Plan{
		set: s, prev: s.table, next: map[string]*binding{}, opts: map[*binding]*Options{}, prevOpts: map[*binding]*Options{},
		packets: map[string]*packets{}, prevPackets: s.udp,
	}
	s.mu.Unlock()

	err := p.bindAll(ctx, wanted)

	s.mu.Lock()
	s.busy = false
	if err == nil && s.stopped {
		err = ErrStopped
	}
	if err == nil {
		s.plan = p
	}
	s.mu.Unlock()
	if err != nil {
		p.closeCreated()
		return nil, err
	}
	return p, nil
}

// bindAll fills next with a binding for each wanted entrypoint. The set's table does not change meanwhile.
func (p *Plan) bindAll(ctx context.Context, wanted map[string]*Options) error {
	have := make(map[string]*socket, len(p.prev))
	for _, b := range p.prev {
		have[b.sock.addr.key] = b.sock
	}
	addrs := make(map[string]address, len(wanted))
	users := make(map[string]string, len(wanted)) // address key to entrypoint
	names := slices.Sorted(maps.Keys(wanted))
	var errs []error
	for _, name := range names {
		a, err := addressOf(wanted[name], name)
		if other, taken := users[a.key]; err == nil && taken {
			err = fmt.Errorf("entrypoint %s has the same address", other)
		}
		if err != nil {
			errs = append(errs, &BindError{name, wanted[name].Address, err})
			continue
		}
		addrs[name], users[a.key] = a, name
	}
	var leaving []*socket // their addresses may be bound again, written differently
	for key, sock := range have {
		if _, used := users[key]; !used {
			leaving = append(leaving, sock)
		}
	}
	for _, name := range names {
		a, ok := addrs[name]
		if !ok {
			continue
		}
		sock := have[a.key]
		if sock == nil {
			var err error
			if sock, err = p.bind(ctx, name, a, leaving); err != nil {
				errs = append(errs, &BindError{name, a.text, err})
				continue
			}
		}
		p.add(name, sock, wanted[name])
		if wanted[name].HTTP3 {
			if err := p.holdPackets(ctx, p.next[name]); err != nil {
				errs = append(errs, &BindError{name, a.text, err})
			}
		}
	}
	return errors.Join(errs...)
}

// bind opens the socket of an address that is not bound, unless another process has passed it on.
func (p *Plan) bind(ctx context.Context, name string, a address, leaving []*socket) (*socket, error) {
	if err := a.resolve(ctx); err != nil {
		return nil, err
	}
	s := p.set
	sock := newSocket(a, s.log)
	if a.tunnel {
		sock.bound = tunnelAddr{}
		p.created = append(p.created, sock)
		return sock, nil
	}
	shared := slices.ContainsFunc(leaving, func(l *socket) bool { return a.overlaps(l.bound) })
	took, err := s.setup.Inherited.take(sock, name, s.acceptRaw)
	switch {
	case err != nil || took:
	case a.udp && s.setup.Listen != nil:
		err = errors.New("this network has no datagrams")
	case a.udp:
		err = bindDatagrams(sock, s.setup.Sockets, shared)
	case s.setup.Listen != nil:
		err = sock.bindPlain(ctx, s.setup.Listen)
	default:
		err = bindKernel(sock, s.setup.Sockets, shared, s.acceptRaw)
	}
	if err != nil {
		return nil, err
	}
	p.created = append(p.created, sock)
	return sock, nil
}

// add puts an entrypoint into the next table: its present binding if the socket stays the same.
func (p *Plan) add(name string, sock *socket, o *Options) {
	b := p.prev[name]
	if b != nil && b.sock == sock {
		p.prevOpts[b] = b.opts.Load()
	} else {
		b = &binding{set: p.set, log: p.set.log, name: name, sock: sock}
		b.opts.Store(o)
	}
	p.next[name], p.opts[b] = b, o
}

// Addr is the address that the named entrypoint has once the plan is committed, nil if there is none.
func (p *Plan) Addr(name string) net.Addr {
	if b := p.next[name]; b != nil {
		return b.sock.bound
	}
	return nil
}

// Commit puts the plan into force: new connections are served as it says, and none is taken any more on sockets that
// it does not want. Those wait in the queue, until Revert lets them be served as before or Finish serves them last.
func (p *Plan) Commit() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stage != prepared {
		return
	}
	p.stage = committed
	s := p.set
	s.mu.Lock()
	for name, b := range p.next {
		if b.counts == nil {
			if s.counts[name] == nil {
				s.counts[name] = &counts{}
			}
			b.counts = s.counts[name]
		}
	}
	s.table, s.udp = p.next, p.packets
	s.mu.Unlock()
	for b, o := range p.opts {
		b.opts.Store(o)
	}
	p.assign(p.next, p.prev)
	assignPackets(p.packets, p.prevPackets, p.next)
}

// assign gives each socket of to its owner, and none to those of from that are not in to.
func (p *Plan) assign(to, from map[string]*binding) {
	kept := make(map[*socket]bool, len(to))
	for _, b := range to {
		kept[b.sock] = true
		if b.sock.owner.Load() != b {
			b.sock.assign(b)
		}
	}
	for _, b := range from {
		if !kept[b.sock] {
			b.sock.assign(nil)
		}
	}
}

// Finish retires what the plan has replaced: connections that wait on unwanted sockets are taken, the sockets are
// closed, and their connections, like those of entrypoints that are gone, drain gently and are forced after bound.
// Zero forces them at once.
func (p *Plan) Finish(bound time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stage != committed {
		return
	}
	p.stage = settled
	p.set.dropPackets(p.prevPackets, bound)
	p.retire(p.prev, p.next, bound)
	p.release()
}

// Revert undoes Commit: what was in force before is again, and connections that the plan's own entrypoints have taken
// meanwhile drain gently. It forces them after bound, as Finish does.
func (p *Plan) Revert(bound time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stage != committed {
		return
	}
	p.stage = settled
	s := p.set
	s.mu.Lock()
	s.table, s.udp = p.prev, p.prevPackets
	for name, b := range p.prev {
		s.counts[name] = b.counts // an older binding of that name may have taken them along
	}
	s.mu.Unlock()
	for b, o := range p.prevOpts {
		b.opts.Store(o)
	}
	p.assign(p.prev, p.next)
	assignPackets(p.prevPackets, p.packets, p.prev)
	s.dropPackets(p.packets, bound)
	p.retire(p.next, p.prev, bound)
	p.release()
}

// Abort gives the plan up before Commit.
func (p *Plan) Abort() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stage != prepared {
		return
	}
	p.stage = settled
	p.closeCreated()
	p.release()
}

// settle ends a plan whose owner does not come to it any more, because the set stops.
func (p *Plan) settle() {
	p.Abort()
	p.Finish(time.Hour) // the drain of the set has its own deadline
}

func (p *Plan) release() {
	p.set.mu.Lock()
	p.set.plan = nil
	p.set.mu.Unlock()
}

func (p *Plan) closeCreated() {
	for _, sock := range p.created {
		sock.close(true)
	}
	p.set.dropPackets(p.packets, 0)
}

// retire ends the bindings of from that are not in to, and the sockets that only from has.
func (p *Plan) retire(from, to map[string]*binding, bound time.Duration) {
	kept := make(map[*socket]bool, len(to))
	for _, b := range to {
		kept[b.sock] = true
	}
	var wg sync.WaitGroup
	for name, b := range from {
		if to[name] == b {
			continue
		}
		wg.Go(func() {
			if !kept[b.sock] {
				b.sock.retire(b)
			}
			p.set.retire(b, bound)
		})
	}
	wg.Wait()
}

// retire tells the connections of a binding that is out of the table to drain.
func (s *Set) retire(b *binding, bound time.Duration) {
	s.mu.Lock()
	s.retired[b] = struct{}{}
	b.timer = time.AfterFunc(max(bound, 0), func() { b.live.Force() })
	s.mu.Unlock()
	b.live.Drain(drain.Gentle)
	b.retired.Store(true)
	if b.conns.Len() == 0 {
		s.forget(b)
	}
}
