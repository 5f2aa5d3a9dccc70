package conn

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"syscall"
)

// Memory is a network inside the process, for tests: addresses and ports behave like a host's loopback, connections
// like TCP's (buffers, half-close, resets, deadlines). It starts no goroutine and works under testing/synctest. It
// lives as long as its owner; closing its listeners and connections is theirs.
type Memory struct {
	mu        sync.Mutex // guards the fields below
	listeners map[string]*MemoryListener
	port      uint16 // given out last
}

// NewMemory returns an empty network.
func NewMemory() *Memory {
	return &Memory{listeners: make(map[string]*MemoryListener), port: firstMemoryPort}
}

const (
	firstMemoryPort = 40000
	memoryBacklog   = 128
)

// Listen binds host:port. Port 0 picks a free one; the host is a name like any other, empty means 127.0.0.1.
func (m *Memory) Listen(addr string) (*MemoryListener, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("listen in memory: %w", err)
	}
	if host == "" {
		host = loopback
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if port == "0" || port == "" {
		port = strconv.Itoa(int(m.freePort()))
	}
	key := net.JoinHostPort(host, port)
	if m.listeners[key] != nil {
		return nil, opError("listen", memoryAddr(key), syscall.EADDRINUSE)
	}
	l := &MemoryListener{net: m, addr: memoryAddr(key), queue: make(chan *MemoryConn, memoryBacklog), done: make(chan struct{})}
	m.listeners[key] = l
	return l, nil
}

const loopback = "127.0.0.1"

// freePort returns the next port. The caller holds the lock.
func (m *Memory) freePort() uint16 {
	if m.port++; m.port < firstMemoryPort {
		m.port = firstMemoryPort
	}
	return m.port
}

// Dial connects to a listener, waiting while its queue is full. Nobody listening is syscall.ECONNREFUSED.
func (m *Memory) Dial(ctx context.Context, addr string) (*MemoryConn, error) {
	m.mu.Lock()
	l := m.listeners[addr]
	local := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), m.freePort())
	m.mu.Unlock()
	if l == nil {
		return nil, opError("dial", memoryAddr(addr), syscall.ECONNREFUSED)
	}
	near, far := memoryPair(memoryAddr(local.String()), l.addr)
	select {
	case <-l.done:
		return nil, opError("dial", l.addr, syscall.ECONNREFUSED)
	default:
	}
	select {
	case l.queue <- far:
		l.refuseLate()
		return near, nil
	case <-l.done:
		return nil, opError("dial", l.addr, syscall.ECONNREFUSED)
	case <-ctx.Done():
		return nil, opError("dial", l.addr, context.Cause(ctx))
	}
}

// DialNet is Dial in the shape that the standard library's clients take.
func (m *Memory) DialNet(ctx context.Context, _, addr string) (net.Conn, error) {
	c, err := m.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// Pipe returns two connected connections without a network.
func Pipe() (a, b *MemoryConn) { return memoryPair("127.0.0.1:1", "127.0.0.1:2") }

// MemoryListener is a listening address of a Memory.
type MemoryListener struct {
	net   *Memory
	addr  memoryAddr
	queue chan *MemoryConn
	once  sync.Once
	done  chan struct{}
}

// Accept waits for the next connection; it is a *MemoryConn.
func (l *MemoryListener) Accept() (net.Conn, error) {
	c, err := l.AcceptConn()
	if err != nil {
		return nil, err
	}
	return c, nil
}

// AcceptConn is Accept with the connection's own type.
func (l *MemoryListener) AcceptConn() (*MemoryConn, error) {
	select {
	case <-l.done:
		return nil, opError("accept", l.addr, net.ErrClosed)
	default:
	}
	select {
	case c := <-l.queue:
		return c, nil
	case <-l.done:
		return nil, opError("accept", l.addr, net.ErrClosed)
	}
}

// Close frees the address. Connections that wait in the queue are reset, as a kernel does.
func (l *MemoryListener) Close() error {
	l.once.Do(func() {
		l.net.mu.Lock()
		delete(l.net.listeners, string(l.addr))
		l.net.mu.Unlock()
		close(l.done)
		l.refuseLate()
	})
	return nil
}

// refuseLate resets what is in the queue of a closed listener.
func (l *MemoryListener) refuseLate() {
	select {
	case <-l.done:
	default:
		return
	}
	for {
		select {
		case c := <-l.queue:
			_ = c.Abort()
		default:
			return
		}
	}
}

// Addr is the address listened on; its String can be dialed.
func (l *MemoryListener) Addr() net.Addr { return l.addr }

type memoryAddr string

func (memoryAddr) Network() string  { return "memory" }
func (a memoryAddr) String() string { return string(a) }

// opError is the net package's shape of a failure, so that callers can tell kinds apart in the usual way.
func opError(op string, addr net.Addr, err error) error {
	if errors.Is(err, net.ErrClosed) {
		err = net.ErrClosed
	}
	return &net.OpError{Op: op, Net: "memory", Addr: addr, Err: err}
}
