package app

import (
	"os"
	"strconv"
	"syscall"
	"time"

	"github.com/sluice-proxy/sluice/internal/entrypoint"
)

// sessionsBound is how long handing sessions of datagrams from one process to the other may take. Meanwhile datagrams
// wait in the queues of their sockets.
const sessionsBound = 5 * time.Second

// expectSessions leaves inherited sockets of datagrams alone until the old process has stopped reading them.
func (a *App) expectSessions(h *entrypoint.Inherited) {
	fd, err := strconv.Atoi(os.Getenv(envSessions))
	_ = os.Unsetenv(envSessions)
	if err != nil || fd < firstFD {
		return
	}
	_ = syscall.SetNonblock(fd, true) // so that reading it can be bounded
	a.sessions = os.NewFile(uintptr(fd), "sessions")
	h.Hold()
}

// takeOver goes on with the sessions of the process that this one replaces.
func (a *App) takeOver() {
	if a.sessions == nil {
		return
	}
	defer a.sessions.Close()
	_ = a.sessions.SetReadDeadline(time.Now().Add(sessionsBound))
	n, err := a.sockets.TakeOver(a.sessions)
	if err != nil {
		a.log.Warn("sessions of datagrams may choose another backend", "taken over", n, "error", err)
	} else if n > 0 {
		a.log.Info("sessions of datagrams taken over", "sessions", n)
	}
}

// handOver tells the process that replaces this one of the sessions, and leaves their clients to it.
func (a *App) handOver(to *os.File) {
	defer to.Close()
	_ = to.SetWriteDeadline(time.Now().Add(sessionsBound))
	if err := a.sockets.HandOver(to); err != nil {
		a.log.Warn("sessions of datagrams may choose another backend", "error", err)
	}
}
