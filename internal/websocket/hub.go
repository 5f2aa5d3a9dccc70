package websocket

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
)

// Bounds of named channels.
const (
	maxMessage     = 64 << 10 // bytes of one message; a longer one ends its session with 1009
	maxName        = 128      // bytes of a channel's name
	maxChannels    = 64       // that one client subscribes to
	maxAllChannels = 16384    // of one service
	maxSubscribers = 16384    // of one channel
	maxQueue       = 256      // messages that wait for one client
	maxQueueBytes  = 1 << 20  // bytes of them
)

// Hub passes messages among the clients that subscribe to a channel. Channels belong to a service, by its name, and are
// there as long as they have subscribers, whichever generation those came under. One Hub lives as long as the process.
type Hub struct {
	delivered, skipped atomic.Uint64

	mu       sync.Mutex // guards services and the number of clients of each
	services map[string]*scope
}

// NewHub returns a hub without channels.
func NewHub() *Hub { return &Hub{services: make(map[string]*scope)} }

// scope is the channels of one service.
type scope struct {
	name    string
	clients int // Hub.mu

	mu       sync.RWMutex // guards channels and their subscribers
	channels map[string]map[*client]struct{}
}

// HubStats is a Hub at one moment.
type HubStats struct {
	Channels, Subscriptions int
	Delivered, Skipped      uint64 // messages put into a client's queue, and those that found it full
}

// Stats counts what is there, and what was passed on since the start.
func (h *Hub) Stats() HubStats {
	s := HubStats{Delivered: h.delivered.Load(), Skipped: h.skipped.Load()}
	h.mu.Lock()
	scopes := slices.Collect(maps.Values(h.services))
	h.mu.Unlock()
	for _, sc := range scopes {
		sc.mu.RLock()
		s.Channels += len(sc.channels)
		for _, subscribers := range sc.channels {
			s.Subscriptions += len(subscribers)
		}
		sc.mu.RUnlock()
	}
	return s
}

// client is one session. Its own channels belong to the goroutine that reads.
type client struct {
	hub     *Hub
	scope   *scope
	own     map[string]struct{}
	queue   chan []byte
	waiting atomic.Int64 // bytes in queue
}

// join makes a client of a service.
func (h *Hub) join(service string) *client {
	h.mu.Lock()
	defer h.mu.Unlock()
	sc := h.services[service]
	if sc == nil {
		sc = &scope{name: service, channels: make(map[string]map[*client]struct{})}
		h.services[service] = sc
	}
	sc.clients++
	return &client{hub: h, scope: sc, queue: make(chan []byte, maxQueue)}
}

// leave ends all subscriptions. Nothing is put into the queue afterwards.
func (c *client) leave() {
	for name := range c.own {
		c.unsubscribe(name)
	}
	c.hub.mu.Lock()
	defer c.hub.mu.Unlock()
	if c.scope.clients--; c.scope.clients == 0 {
		delete(c.hub.services, c.scope.name)
	}
}

// subscribe returns why it cannot be done, or "".
func (c *client) subscribe(name string) (refused string) {
	if len(c.own) >= maxChannels {
		return "max channels (64) reached"
	}
	c.scope.mu.Lock()
	defer c.scope.mu.Unlock()
	subscribers := c.scope.channels[name]
	switch {
	case subscribers == nil && len(c.scope.channels) >= maxAllChannels:
		return "max channels of the service (16384) reached"
	case len(subscribers) >= maxSubscribers:
		return "max subscribers (16384) reached"
	case subscribers == nil:
		subscribers = make(map[*client]struct{})
		c.scope.channels[name] = subscribers
	}
	subscribers[c] = struct{}{}
	if c.own == nil {
		c.own = make(map[string]struct{})
	}
	c.own[name] = struct{}{}
	return ""
}

// unsubscribe reports whether there was a subscription.
func (c *client) unsubscribe(name string) bool {
	if !c.subscribed(name) {
		return false
	}
	delete(c.own, name)
	c.scope.mu.Lock()
	defer c.scope.mu.Unlock()
	subscribers := c.scope.channels[name]
	delete(subscribers, c)
	if len(subscribers) == 0 {
		delete(c.scope.channels, name)
	}
	return true
}

func (c *client) subscribed(name string) bool {
	_, ok := c.own[name]
	return ok
}

// list is the names of the client's channels, sorted.
func (c *client) list() []string { return slices.Sorted(maps.Keys(c.own)) }

// publish passes a message to all subscribers of a channel, the client among them, and waits for none: who has too much
// waiting does not get this one. A channel that the client does not subscribe to gets nothing. message is not changed
// afterwards.
func (c *client) publish(name string, message []byte) {
	if !c.subscribed(name) {
		return
	}
	var delivered, skipped uint64
	c.scope.mu.RLock()
	for to := range c.scope.channels[name] {
		if to.put(message) {
			delivered++
		} else {
			skipped++
		}
	}
	c.scope.mu.RUnlock()
	c.hub.delivered.Add(delivered)
	c.hub.skipped.Add(skipped)
}

// put appends a message to the queue if there is room.
func (c *client) put(message []byte) bool {
	n := int64(len(message))
	if c.waiting.Add(n) <= maxQueueBytes {
		select {
		case c.queue <- message:
			return true
		default:
		}
	}
	c.waiting.Add(-n)
	return false
}

// took tells that a message from the queue has been sent.
func (c *client) took(message []byte) { c.waiting.Add(-int64(len(message))) }
