package websocket_test

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/sluice-proxy/sluice/internal/websocket"
)

// The table of commands, and who hears of them.
func TestCommands(t *testing.T) {
	h := websocket.NewHub()
	a, b, other := h.Join("s"), h.Join("s"), h.Join("another")
	long := strings.Repeat("n", websocket.MaxName)
	for _, tt := range []struct {
		from       *websocket.Client
		say, reply string
		a, b       string // what they get
	}{
		{a, "_list", "_channels:[]", "", ""},
		{a, "news:unheard", "", "", ""},
		{a, "_sub:news", "_ok:subscribed to news", "", ""},
		{a, "_sub:news", "_ok:already subscribed to news", "", ""},
		{b, "news:not a subscriber", "", "", ""},
		{b, "_sub:news", "_ok:subscribed to news", "", ""},
		{other, "_sub:news", "_ok:subscribed to news", "", ""},
		{b, "news:hello: all", "", "news:hello: all", "news:hello: all"},
		{a, "news:", "", "news:", "news:"},
		{a, "_ping", "_pong", "", ""},
		{a, "_sub:a\"<ü>", "_ok:subscribed to a\"<ü>", "", ""},
		{a, "_list", `_channels:["a\"<ü>","news"]`, "", ""},
		{b, "_unsub:news", "_ok:unsubscribed from news", "", ""},
		{b, "_unsub:news", "_ok:not subscribed to news", "", ""},
		{a, "news:one left", "", "news:one left", ""},
		{a, "_sub:" + long, "_ok:subscribed to " + long, "", ""},
		{a, "_sub:" + long + "n", "_error:invalid channel name", "", ""},
		{a, "_sub:", "_error:invalid channel name", "", ""},
		{a, "_sub:a:b", "_error:invalid channel name", "", ""},
		{a, "_sub:_ping", "_error:invalid channel name", "", ""},
		{a, "_sub:a\nb", "_error:invalid channel name", "", ""},
		{a, "_unsub:", "_error:invalid channel name", "", ""},
		{a, "a\tb:x", "_error:invalid channel name", "", ""},
		{a, "", "_error:invalid message format", "", ""},
		{a, "hello", "_error:invalid message format", "", ""},
		{a, ":x", "_error:invalid message format", "", ""},
		{a, "_what:x", "_error:invalid message format", "", ""},
		{a, "_sub", "_error:invalid message format", "", ""},
		{a, "_ping ", "_error:invalid message format", "", ""},
	} {
		if got := tt.from.Command(tt.say); got != tt.reply {
			t.Errorf("%q: replied %q, want %q", tt.say, got, tt.reply)
		}
		if ga, gb := a.Next(), b.Next(); ga != tt.a || gb != tt.b || other.Next() != "" {
			t.Errorf("%q: they got %q and %q, want %q and %q", tt.say, ga, gb, tt.a, tt.b)
		}
	}
	if s := h.Stats(); s.Delivered != 5 || s.Skipped != 0 || s.Channels != 4 || s.Subscriptions != 4 {
		t.Errorf("%+v", s)
	}
	a.Leave()
	b.Leave()
	other.Leave()
	if s := h.Stats(); s.Channels != 0 || s.Subscriptions != 0 {
		t.Errorf("left behind: %+v", s)
	}
}

func TestChannelLimit(t *testing.T) {
	h := websocket.NewHub()
	c := h.Join("s")
	defer c.Leave()
	for i := range websocket.MaxChannels {
		if got, want := c.Command(fmt.Sprintf("_sub:%d", i)), fmt.Sprintf("_ok:subscribed to %d", i); got != want {
			t.Fatalf("%q, want %q", got, want)
		}
	}
	for _, row := range [][2]string{
		{"_sub:more", "_error:max channels (64) reached"},
		{"_sub:0", "_ok:already subscribed to 0"},
		{"_unsub:0", "_ok:unsubscribed from 0"},
		{"_sub:more", "_ok:subscribed to more"},
	} {
		if got := c.Command(row[0]); got != row[1] {
			t.Errorf("%s: %q, want %q", row[0], got, row[1])
		}
	}
}

// The bounds of a service, with the numbers that the documents give.
func TestServiceLimits(t *testing.T) {
	h := websocket.NewHub()
	var all []*websocket.Client
	join := func() *websocket.Client {
		all = append(all, h.Join("s"))
		return all[len(all)-1]
	}
	c := join()
	for i := range 16384 {
		if i%websocket.MaxChannels == 0 {
			c = join()
		}
		c.Command(fmt.Sprintf("_sub:%d", i))
	}
	if got := join().Command("_sub:more"); got != "_error:max channels of the service (16384) reached" {
		t.Error(got)
	}
	for range 16383 {
		join().Command("_sub:0")
	}
	if got := join().Command("_sub:0"); got != "_error:max subscribers (16384) reached" {
		t.Error(got)
	}
	for _, c := range all {
		c.Leave()
	}
	if s := h.Stats(); s != (websocket.HubStats{}) {
		t.Errorf("left behind: %+v", s)
	}
}

// A subscriber that takes nothing misses messages; the others get all of them, in order.
func TestSlowSubscriber(t *testing.T) {
	for _, tt := range []struct {
		name    string
		payload int
		held    int // how many wait at most
	}{
		{"messages", 1, websocket.MaxQueue},
		{"bytes", 60_000, websocket.MaxQueueBytes / 60_002},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := websocket.NewHub()
			slow, quick := h.Join("s"), h.Join("s")
			defer slow.Leave()
			defer quick.Leave()
			slow.Command("_sub:c")
			quick.Command("_sub:c")
			sent := 2 * tt.held
			payload := strings.Repeat("x", tt.payload)
			for i := range sent {
				say := fmt.Sprintf("c:%s%d", payload[:tt.payload-1], i%10)
				quick.Command(say)
				if got := quick.Next(); got != say {
					t.Fatalf("message %d is %.20q", i, got)
				}
			}
			got := 0
			for m := slow.Next(); m != ""; m = slow.Next() {
				if want := fmt.Sprint(got % 10); !strings.HasSuffix(m, want) {
					t.Fatalf("message %d ends with %q", got, m[len(m)-1:])
				}
				got++
			}
			if s := h.Stats(); got != tt.held || s.Skipped != uint64(sent-tt.held) || s.Delivered != uint64(sent+tt.held) {
				t.Errorf("%d waited, want %d; %+v", got, tt.held, s)
			}
			quick.Command("c:again")
			if slow.Next() != "c:again" {
				t.Error("it gets nothing any more")
			}
		})
	}
}

// Many at once leave nothing behind.
func TestHubTogether(t *testing.T) {
	h := websocket.NewHub()
	var all sync.WaitGroup
	for i := range 16 {
		all.Go(func() {
			for n := range 200 {
				c := h.Join("s")
				name := fmt.Sprint((i + n) % 3)
				c.Command("_sub:" + name)
				c.Command(name + ":x")
				h.Stats()
				c.Next()
				c.Leave()
			}
		})
	}
	all.Wait()
	if s := h.Stats(); s.Channels != 0 || s.Subscriptions != 0 {
		t.Errorf("left behind: %+v", s)
	}
}

// twin says by a regular expression what parse finds.
var twin = regexp.MustCompile(`^(?:_(un)?sub:([^:_\x00-\x1f\x7f-\x{9f}][^:\x00-\x1f\x7f-\x{9f}]*)|([^:_\x00-\x1f\x7f-\x{9f}][^:\x00-\x1f\x7f-\x{9f}]*):(?s:.*))$`)

func FuzzCommand(f *testing.F) {
	for _, s := range []string{"_sub:a", "_unsub:a", "a:b", "_list", "_ping", "_sub:a:b", "_sub:_", "x", ":", "_:", "_sub:\u0085"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if !utf8.ValidString(s) {
			return // refused before
		}
		h := websocket.NewHub()
		c := h.Join("s")
		defer c.Leave()
		reply, m := c.Command(s), twin.FindStringSubmatch(s)
		known := m != nil && len(m[2]) <= websocket.MaxName && len(m[3]) <= websocket.MaxName
		switch {
		case s == "_ping" || s == "_list":
		case !known && !strings.HasPrefix(reply, "_error:invalid "):
			t.Errorf("%q is accepted: %q", s, reply)
		case !known:
		case m[1] == "un" && reply != "_ok:not subscribed to "+m[2], m[1] == "" && m[2] != "" && reply != "_ok:subscribed to "+m[2], m[3] != "" && reply != "":
			t.Errorf("%q: %q", s, reply)
		}
		list, ok := strings.CutPrefix(c.Command("_list"), "_channels:")
		var names []string
		if !ok || json.Unmarshal([]byte(list), &names) != nil || len(names) > 1 {
			t.Errorf("listed as %q", list)
		}
		if known && m[1] == "" && m[2] != "" && (len(names) != 1 || names[0] != m[2]) {
			t.Errorf("%q: listed as %q", s, list)
		}
	})
}
