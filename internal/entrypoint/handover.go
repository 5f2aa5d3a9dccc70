package entrypoint

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/internal/exchange"
)

const (
	// cedeBound is how long a socket may take to stop reading before its sessions are handed over.
	cedeBound = time.Second
	// maxHandedLine and maxHanded bound what a process takes over: one session, and all of them.
	maxHandedLine, maxHanded = 4 << 10, 1 << 20
)

// client tells clients of a socket apart in a table that another process can read.
type client struct {
	Client netip.AddrPort `json:"client"`
	Local  netip.Addr     `json:"local,omitzero"` // the address that it has written to, on a socket of several
}

// handed is one session that another process goes on with: a line of JSON.
type handed struct {
	Entrypoint string `json:"entrypoint"`
	client
	exchange.Place
}

// pins are the backends of sessions that another process had. They wait for the next datagram of each client.
type pins struct {
	since time.Time

	mu     sync.Mutex // guards places
	places map[client]exchange.Place
}

// take removes the place of a client, if there is one.
func (p *pins) take(c client) exchange.Place {
	if p == nil {
		return exchange.Place{}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	place := p.places[c]
	delete(p.places, c)
	return place
}

// ceder is an acceptor that can leave reading to another process.
type ceder interface {
	// cede stops reading and tells the sessions that there are. It answers once.
	cede(answer chan<- []handed)
}

// HandOver leaves the datagrams of clients to the process that has copies of the sockets, and writes to w which backend
// each session has. Answers of backends that are still under way are passed on until Drain has come to its end.
func (s *Set) HandOver(w io.Writer) error {
	s.mu.Lock()
	table := s.table
	s.mu.Unlock()
	var waiting []chan []handed
	for _, b := range table {
		for _, a := range b.sock.acceptors {
			if c, ok := a.(ceder); ok {
				answer := make(chan []handed, 1)
				c.cede(answer)
				waiting = append(waiting, answer)
			}
		}
	}
	out := bufio.NewWriter(w)
	enc := json.NewEncoder(out)
	bound := time.NewTimer(cedeBound)
	defer bound.Stop()
	for _, answer := range waiting {
		select {
		case all := <-answer:
			for i := range all {
				if err := enc.Encode(&all[i]); err != nil {
					return fmt.Errorf("handing sessions over: %w", err)
				}
			}
		case <-bound.C:
			return errors.New("handing sessions over: a socket is still being read")
		}
	}
	return out.Flush()
}

// TakeOver reads what HandOver has written in the process that this one replaces; only then the inherited sockets of
// datagrams are read. Whatever goes wrong, they are read after it: sessions that are not known choose anew.
func (s *Set) TakeOver(r io.Reader) (sessions int, err error) {
	all, err := readHanded(r)
	s.mu.Lock()
	table := s.table
	s.mu.Unlock()
	for name, places := range all {
		if b := table[name]; b != nil {
			b.sock.pins.Store(&pins{since: time.Now(), places: places})
			sessions += len(places)
		}
	}
	s.setup.Inherited.release()
	for _, b := range table {
		b.sock.attend()
	}
	return sessions, err
}

// readHanded reads a table of sessions, by entrypoint. With an error it returns what was readable before.
func readHanded(r io.Reader) (map[string]map[client]exchange.Place, error) {
	all := make(map[string]map[client]exchange.Place)
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxHandedLine)
	for n := 0; lines.Scan(); n++ {
		if n == maxHanded {
			return all, fmt.Errorf("taking sessions over: more than %d", maxHanded)
		}
		var h handed
		if err := json.Unmarshal(lines.Bytes(), &h); err != nil {
			return all, fmt.Errorf("taking sessions over: %w", err)
		}
		if !h.Client.IsValid() || h.Entrypoint == "" {
			return all, errors.New("taking sessions over: a session without client or entrypoint")
		}
		if all[h.Entrypoint] == nil {
			all[h.Entrypoint] = make(map[client]exchange.Place)
		}
		all[h.Entrypoint][h.client] = h.Place
	}
	if err := lines.Err(); err != nil {
		return all, fmt.Errorf("taking sessions over: %w", err)
	}
	return all, nil
}
