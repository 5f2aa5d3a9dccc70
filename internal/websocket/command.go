package websocket

import (
	"bytes"
	"encoding/json"
	"strings"
	"unicode"
)

// verb is what a client's message asks for.
type verb uint8

const (
	verbNone verb = iota // of no known form
	verbSub
	verbUnsub
	verbPing
	verbList
	verbPublish
	verbBadName // a form that is known, for a channel that cannot be
)

// parse takes a message apart. Names of channels have no colon and do not begin with an underscore, so that no message
// can be read in two ways.
func parse(message []byte) (v verb, channel string) {
	switch string(message) {
	case "_ping":
		return verbPing, ""
	case "_list":
		return verbList, ""
	}
	v = verbPublish
	name, _, ok := bytes.Cut(message, []byte(":"))
	if rest, found := bytes.CutPrefix(message, []byte("_sub:")); found {
		v, name = verbSub, rest
	} else if rest, found := bytes.CutPrefix(message, []byte("_unsub:")); found {
		v, name = verbUnsub, rest
	} else if !ok || len(name) == 0 || name[0] == '_' {
		return verbNone, ""
	}
	if !validName(name) {
		return verbBadName, ""
	}
	return v, string(name)
}

// validName accepts 1 to 128 bytes of text without a control character.
func validName(name []byte) bool {
	return len(name) > 0 && len(name) <= maxName && name[0] != '_' && bytes.IndexByte(name, ':') < 0 &&
		bytes.IndexFunc(name, unicode.IsControl) < 0
}

// command carries a client's message out and returns the reply; "" there is none.
func (c *client) command(message []byte) (reply string) {
	v, channel := parse(message)
	switch v {
	case verbSub:
		if c.subscribed(channel) {
			return "_ok:already subscribed to " + channel
		}
		if refused := c.subscribe(channel); refused != "" {
			return "_error:" + refused
		}
		return "_ok:subscribed to " + channel
	case verbUnsub:
		if c.unsubscribe(channel) {
			return "_ok:unsubscribed from " + channel
		}
		return "_ok:not subscribed to " + channel
	case verbPing:
		return "_pong"
	case verbList:
		return "_channels:" + names(c.list())
	case verbPublish:
		c.publish(channel, message)
		return ""
	case verbBadName:
		return "_error:invalid channel name"
	}
	return "_error:invalid message format"
}

// names is a JSON array.
func names(list []string) string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if list == nil {
		list = []string{}
	}
	_ = e.Encode(list) // strings can always be encoded
	return strings.TrimSuffix(b.String(), "\n")
}
