package websocket

// Client is a client of a hub, without a connection.
type Client = client

// Names of what tests ask for.
const (
	MaxChannels   = maxChannels
	MaxName       = maxName
	MaxQueue      = maxQueue
	MaxQueueBytes = maxQueueBytes
)

func (h *Hub) Join(service string) *Client { return h.join(service) }

func (c *client) Leave()                     { c.leave() }
func (c *client) Command(text string) string { return c.command([]byte(text)) }

// Next takes the next message from the queue; "" there is none.
func (c *client) Next() string {
	select {
	case m := <-c.queue:
		c.took(m)
		return string(m)
	default:
		return ""
	}
}
