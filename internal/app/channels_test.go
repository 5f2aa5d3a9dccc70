package app_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/gatewaytest"
)

// channels is a router and service of named channels; ws is more of its websocket block.
func channels(ws string) string {
	return "routers \"r\" {\n rule = \"PathPrefix(`/`)\"\n service = \"s\"\n}\nservices \"s\" {\n websocket {\n multiplex = true\n" + ws + "\n }\n}\n"
}

// Clients of every kind hear each other, before and after a reload, and leave nothing behind.
func TestChannels(t *testing.T) {
	t.Parallel()
	g := gatewaytest.Start(t, both(t, channels("")))
	var all []*session
	for _, c := range carriers {
		s := c.accepted(t, g, "/")
		s.say("_ping")
		s.hears("_pong")
		s.say("_sub:news")
		s.hears("_ok:subscribed to news")
		all = append(all, s)
	}
	for i, s := range all {
		say := "news:from " + carriers[i].name
		s.say(say)
		for _, to := range all {
			to.hears(say)
		}
	}
	g.Apply(both(t, channels(" lifetime = \"1h\"")))
	late := carriers[0].accepted(t, g, "/")
	late.say("_sub:news")
	late.hears("_ok:subscribed to news")
	late.say("news:after the reload")
	for _, to := range append(all, late) {
		to.hears("news:after the reload")
	}
	long := "news:" + strings.Repeat("x", 60_000)
	for _, part := range []string{long[:10], long[10:30_000]} { // in fragments, with a ping between them
		first := byte(0)
		if part == long[:10] {
			first = 1
		}
		all[2].write(frame(first, part))
	}
	all[2].write(frame(0x89, "p"))
	if first, got := all[2].next(); first != 0x8a || got != "p" {
		t.Errorf("pong %#x %q", first, got)
	}
	all[2].write(frame(0x80, long[30_000:]))
	for _, to := range append(all, late) {
		to.hears(long)
	}
	const delivered = `gateway_websocket_channel_messages_total{result="delivered"}`
	gatewaytest.Until(t, "the last message is counted", func() bool { return gatewaytest.Metric(scrape(t, g), delivered) >= 17 })
	m := scrape(t, g)
	for series, want := range map[string]float64{
		"gateway_websocket_channels": 1, "gateway_websocket_subscriptions": 4, `gateway_websocket_sessions{service="s"}`: 4,
		delivered: 17, `gateway_websocket_channel_messages_total{result="skipped"}`: 0,
	} {
		if v := gatewaytest.Metric(m, series); v != want {
			t.Errorf("%s is %v, want %v", series, v, want)
		}
	}
	for _, s := range append(all, late) {
		s.write(frame(0x88, "\x03\xe8bye"))
		s.dismissed(1000)
		if line := g.Lines.Next(t); line.Text("outcome") != "upgraded" || line.Number("bytes_in") == 0 || line.Text("backend") != "" {
			t.Errorf("%v", line)
		}
	}
	if v := gatewaytest.Metric(scrape(t, g), "gateway_websocket_channels"); v != -1 && v != 0 {
		t.Errorf("%v channels are left", v)
	}
}

// What a client does wrong ends its session with the code that says so.
func TestChannelFaults(t *testing.T) {
	rows := []struct {
		name string
		sent []byte
		code uint16 // 0: closed without one
	}{
		{"too long", frame(0x81, "a:"+strings.Repeat("x", 64<<10)), 1009},
		{"much too long", frame(0x81, "a:"+strings.Repeat("x", 700<<10)), 1009},
		{"no UTF-8", frame(0x81, "a:\xff"), 1007},
		{"not masked", []byte{0x81, 5, '_', 'p', 'i', 'n', 'g'}, 0},
		{"unknown opcode", frame(0x83, "_ping"), 1002},
		{"reserved bit", frame(0xc1, "_ping"), 1002},
		{"long ping", frame(0x89, strings.Repeat("x", 126)), 1002},
		{"fragmented ping", frame(0x09, "x"), 1002},
		{"continuation of nothing", frame(0x80, "x"), 1002},
		{"close with half a code", frame(0x88, "\x03"), 1002},
		{"close with a code that is none", frame(0x88, "\x03\xed"), 1002},
		{"close with a code of its own", frame(0x88, "\x0f\xa0"), 4000},
	}
	overCarriers(t, func(t *testing.T) string { return both(t, channels("")) }, func(t *testing.T, g *gatewaytest.Gateway, c carrier) {
		for _, row := range rows {
			t.Run(row.name, func(t *testing.T) {
				s := c.accepted(t, g, "/")
				s.say("_sub:a")
				s.hears("_ok:subscribed to a")
				s.write(frame(0x82, "binary"))
				s.hears("_error:invalid message format")
				s.write(row.sent)
				if row.code != 0 {
					s.dismissed(row.code)
				} else if rest, _ := io.ReadAll(s.r); len(rest) > 0 {
					t.Errorf("heard %q", rest)
				}
			})
		}
	})
}

// The bounds of a session, and a drain, are told by a close frame.
func TestChannelsEnd(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ bound, limit, outcome string }{
		{" idle_timeout = \"2s\"", "websocket.idle_timeout", "timeout"}, {" lifetime = \"2s\"", "websocket.lifetime", "timeout"}, {"", "", "drained"},
	} {
		t.Run(row.outcome+row.limit, func(t *testing.T) {
			overCarriers(t, func(t *testing.T) string { return both(t, channels(row.bound)) }, func(t *testing.T, g *gatewaytest.Gateway, c carrier) {
				t.Parallel()
				s := c.accepted(t, g, "/")
				s.say("_sub:a")
				s.hears("_ok:subscribed to a")
				if row.bound == "" {
					begin(g)
					draining(t, g)
					g.Force()
				}
				s.dismissed(1001)
				if line := g.Lines.Next(t); line.Text("outcome") != row.outcome || line.Text("limit") != row.limit {
					t.Errorf("%v", line)
				}
			})
		})
	}
}

// Requests that are no handshake go to the backends, if there are any; pages of other hosts are not let in.
func TestChannelsRefuse(t *testing.T) {
	g := gatewaytest.Start(t, both(t, channels("")))
	c := gatewaytest.Dial(t, g.Addr("web"))
	if resp, body := c.Get("/"); resp.StatusCode != 426 || resp.Header.Get("Upgrade") != "websocket" || !strings.Contains(body, "upgrade_required") {
		t.Errorf("%s %v %s", resp.Status, resp.Header, body)
	}
	for _, k := range carriers {
		host := "x"
		if k.name == "h2" {
			host = g.Addr("tls")
		}
		rows := [][]string{
			{"Origin: https://evil.test"}, {"Origin: null"}, {"Origin: "}, {"Origin: https://" + host, "Origin: https://evil.test"},
		}
		if k.name != "h2" {
			rows = append(rows, []string{"Origin: https://evil.test", "Connection: origin"})
		}
		for _, fields := range rows {
			_, resp := k.open(t, g, "/", fields...)
			if resp.StatusCode == k.switched() {
				t.Errorf("%s: %q is let in", k.name, fields)
				continue
			}
			if body, _ := io.ReadAll(resp.Body); resp.StatusCode != 403 || !strings.Contains(string(body), "origin_not_allowed") {
				t.Errorf("%s: %q: %s %s", k.name, fields, resp.Status, body)
			}
		}
		k.accepted(t, g, "/", "Origin: https://"+host).close()
	}

	b := gatewaytest.NewBackend(t, "one")
	g.Apply(both(t, strings.Replace(channels(""), " }\n}\n", " }\n load_balancer { servers { url = \""+b.URL+"\" } }\n}\n", 1)))
	if resp, body := gatewaytest.Dial(t, g.Addr("web")).Get("/"); resp.StatusCode != http.StatusOK || body != "one" {
		t.Errorf("%s %s", resp.Status, body)
	}
	s := carriers[0].accepted(t, g, "/")
	s.say("_list")
	s.hears("_channels:[]")
	if n := b.Seen.Load(); n != 1 {
		t.Errorf("the backend was asked %d times", n)
	}
}
