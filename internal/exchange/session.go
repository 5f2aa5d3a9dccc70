package exchange

import (
	"net/netip"
	"time"

	"github.com/sluice-proxy/sluice/internal/conn"
)

// SessionHandler decides where the datagrams of a client go.
type SessionHandler interface {
	// OpenSession finds a backend for a new client: the one of again, if that is set and still suits. It is called between
	// two datagrams of other clients and must not wait. wake is called, from any goroutine, when the address of the
	// backend, which was not known yet, may be. An error, which carries an *Error, is that there is none.
	OpenSession(x *Exchange, again Place, wake Waker) (Session, error)
}

// Session is where the datagrams of one client go. Its methods are called by one goroutine and do not wait.
type Session interface {
	// Address is the backend's; invalid without an error means that it is being looked up.
	Address() (netip.AddrPort, error)
	// Place names the backend.
	Place() Place
	// Next is the place whose turn it is where the datagrams of one client are divided; zero when there is none.
	Next() Place
	// Stays is asked for each datagram of the client. An error is why the session must end: it is for Close.
	Stays() error
	// Answered tells of the first datagram that comes back.
	Answered()
	// Close ends the session and its record. nil is that it was idle, a syscall.Errno what the network says of the backend.
	Close(err error)
}

// Place names a backend, so that another process can choose the same.
type Place struct {
	Service string
	Backend string // URL as configured, without credentials
}

// Waker ends a wait.
type Waker interface{ Wake() }

// BeginSession prepares an exchange for a session of datagrams. It has no Guard.
func (x *Exchange) BeginSession(info *conn.Info, now time.Time) {
	x.Begin(nil, nil, info, now)
	x.Request.Protocol = UDP
}
