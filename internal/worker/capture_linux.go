package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/drain"
	"github.com/sluice-proxy/sluice/internal/fabric"
)

// Egress carries one captured connection out: it returns a connection over which bytes reach to, an IPv4 address and
// port that the actor dialed, as that actor. The relay closes it. ctx ends with the time allowed, or with the actor's
// stay. An error closes the actor's connection with a reset; what it says is logged and never reaches the actor.
type Egress func(ctx context.Context, to netip.AddrPort) (conn.Conn, error)

// Bounds of the connections of one actor. All are positive.
type Bounds struct {
	Captured   int           // connections from the actor at a time; more are reset
	Rate       int           // connections from the actor a second, and twice as many at once; more wait to be taken
	Tunnels    int           // connections to the actor at a time; more are refused
	Dial       time.Duration // to connect, out through the egress gateway or in to the actor
	Idle       time.Duration // without a byte in either direction
	HalfClosed time.Duration // without a byte once one direction has ended
}

// DefaultBounds are what a worker uses unless it is told otherwise.
var DefaultBounds = Bounds{Captured: 256, Rate: 200, Tunnels: 1024, Dial: 5 * time.Second, Idle: time.Hour, HalfClosed: time.Minute}

// Counts say what became of the connections of all actors of a worker. Every captured connection is in exactly one of
// Carried, Loops, Foreign, Unknown, Full and Failed.
type Counts struct {
	Carried atomic.Int64 // relayed to the egress gateway
	Loops   atomic.Int64 // reset: dialed the capturing listener itself
	Foreign atomic.Int64 // reset: a socket of another namespace; never happens unless the kernel or we err
	Unknown atomic.Int64 // reset: the kernel did not know where to
	Full    atomic.Int64 // reset: too many at a time
	Failed  atomic.Int64 // reset: the egress gateway was not reached, or refused
	Late    atomic.Int64 // of all these: had to wait first, since the actor opens connections too fast
	Tunnels atomic.Int64 // relayed to actors
	Stale   atomic.Int64 // tunnels refused: the actor is not here
	Refused atomic.Int64 // tunnels refused: the actor did not take them, or has too many
}

// Values are the counts by name, for operators.
func (c *Counts) Values() map[string]int64 {
	return map[string]int64{
		"captured_carried": c.Carried.Load(), "captured_loop": c.Loops.Load(), "captured_foreign": c.Foreign.Load(),
		"captured_unknown": c.Unknown.Load(), "captured_full": c.Full.Load(), "captured_failed": c.Failed.Load(), "captured_late": c.Late.Load(),
		"tunnel_carried": c.Tunnels.Load(), "tunnel_stale": c.Stale.Load(), "tunnel_refused": c.Refused.Load(),
	}
}

// capture accepts the connections of one actor and carries them out.
type capture struct {
	listener *net.TCPListener
	gateway  *fabric.Namespace
	egress   Egress
	bounds   Bounds
	counts   *Counts
	clock    *conn.Clock
	log      *slog.Logger
	refusals strangersLog
	pace     pace // of accept

	links  *drain.Tracker
	ctx    context.Context // of dials
	cancel context.CancelFunc
	slots  chan struct{}
	wg     sync.WaitGroup
}

// start binds CapturePort in the gateway namespace and accepts.
func (c *capture) start() error {
	l, err := c.gateway.Listen(netip.AddrPortFrom(netip.IPv4Unspecified(), CapturePort))
	if err != nil {
		return err
	}
	c.listener = l
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.slots = make(chan struct{}, c.bounds.Captured)
	c.pace = pace{rate: float64(c.bounds.Rate), burst: float64(2 * c.bounds.Rate)}
	c.wg.Go(c.accept)
	return nil
}

// stop takes no more, ends what is under way and waits for it.
func (c *capture) stop() error {
	err := c.listener.Close()
	c.cancel()
	c.links.Force()
	c.wg.Wait()
	return err
}

// accept is the loop; it ends with the listener. Without descriptors, say, it goes on later.
func (c *capture) accept() {
	wait := time.Duration(0)
	for {
		tcp, err := c.listener.AcceptTCP()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			wait = min(max(2*wait, 5*time.Millisecond), time.Second)
			c.log.Error("accepting a captured connection", "error", err, "again_in", wait)
			c.pause(wait)
			continue
		}
		wait = 0
		// Those behind it wait in the kernel, which lets the actor dial no more when it has as many as it can: that costs us, and with
		// us other actors, nothing, unlike resetting connections that are tried again at once.
		if late := c.pace.next(time.Now()); late > 0 {
			c.counts.Late.Add(1)
			c.refusals.warn("captured connections wait: the actor opens them too fast", "reason", "captured_late", "a_second", c.bounds.Rate, "wait", late)
			c.pause(late)
		}
		c.admit(tcp)
	}
}

// pause waits, not beyond the end of the actor's stay.
func (c *capture) pause(d time.Duration) {
	select {
	case <-time.After(d):
	case <-c.ctx.Done():
	}
}

// admit finds out where a connection was meant to go, and carries it there or resets it.
func (c *capture) admit(tcp *net.TCPConn) {
	from, ok := conn.RawOf(tcp)
	if !ok {
		_ = tcp.Close()
		return
	}
	to, err := c.destination(from)
	if err != nil {
		c.refusals.warn("reset a captured connection", "error", err, "from", from.Info().Remote, "to", to)
		_ = from.Abort()
		return
	}
	select {
	case c.slots <- struct{}{}:
	default:
		c.counts.Full.Add(1)
		_ = from.Abort()
		return
	}
	c.wg.Go(func() {
		defer func() { <-c.slots }()
		c.carry(from, to)
	})
}

// Reasons to reset a captured connection.
var (
	errLoop    = errors.New("dialed the capturing listener itself")
	errUnknown = errors.New("the kernel does not know where it was meant to go")
)

func (c *capture) destination(from *conn.Raw) (netip.AddrPort, error) {
	if err := c.gateway.Check(from.FD()); err != nil {
		c.counts.Foreign.Add(1)
		return netip.AddrPort{}, err
	}
	to, err := originalDestination(from.FD())
	if err != nil {
		c.counts.Unknown.Add(1)
		return to, fmt.Errorf("%w: %w", errUnknown, err)
	}
	if subnet.Contains(to.Addr()) || to == from.Info().Local {
		c.counts.Loops.Add(1)
		return to, errLoop
	}
	return to, nil
}

// originalDestination is what a redirected connection was dialed to (SO_ORIGINAL_DST of linux/netfilter_ipv4.h).
func originalDestination(fd int) (netip.AddrPort, error) {
	// The option fills a sockaddr_in of 16 bytes; this is the call that takes the bytes of an option as they are.
	m, err := unix.GetsockoptIPv6Mreq(fd, unix.SOL_IP, unix.SO_ORIGINAL_DST)
	if err != nil {
		return netip.AddrPort{}, err
	}
	b := m.Multiaddr
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), uint16(b[2])<<8|uint16(b[3])), nil
}

func (c *capture) carry(from *conn.Raw, to netip.AddrPort) {
	ctx, cancel := context.WithTimeout(c.ctx, c.bounds.Dial)
	out, err := c.egress(ctx, to)
	cancel()
	if err != nil {
		c.counts.Failed.Add(1)
		c.refusals.warn("a captured connection was not carried", "to", to, "error", err)
		_ = from.Abort()
		return
	}
	c.counts.Carried.Add(1)
	done := link{tracker: c.links, clock: c.clock, bounds: c.bounds}.relay(from, out)
	c.log.Debug("a captured connection has ended", "to", to, "sent", done.AtoB, "received", done.BtoA, "error", done.Err)
}
