package exchange_test

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/exchange"
)

func TestGRPCContentType(t *testing.T) {
	for value, want := range map[string]bool{
		"application/grpc": true, "Application/GRPC": true, "application/grpc+proto": true, "application/grpc;charset=utf-8": true,
		"application/grpc+json ; x=y": true, " application/grpc": true, "application/grpc ;": true, "application/grpc+x": true,
		"": false, "application/grpc+": false, "application/grpc+;a=b": false, "application/grpcfoo": false, "application/grp": false,
		"application/grpc-web": false, "application/grpc-web+proto": false, "application/grpc-web-text": false, "application/json": false,
		"text/plain; application/grpc": false, "application/grpc,application/json": false, "application/grpc x": false,
	} {
		r := exchange.Request{Method: []byte("POST")}
		r.Fields.Add("Content-Type", value)
		if got := r.GRPC(); got != want {
			t.Errorf("%q: %v", value, got)
		}
	}
	if new(exchange.Request).GRPC() {
		t.Error("without content type")
	}
	for _, method := range []string{"GET", "HEAD", "CONNECT", "PUT", "post", ""} {
		r := exchange.Request{Method: []byte(method)}
		r.Fields.Add("Content-Type", "application/grpc")
		if r.GRPC() {
			t.Errorf("method %q", method)
		}
	}
	upgrade := exchange.Request{Method: []byte("POST"), Upgrade: []byte("websocket")}
	upgrade.Fields.Add("Content-Type", "application/grpc")
	if upgrade.GRPC() {
		t.Error("an upgrade")
	}
}

// call begins an exchange of a gRPC call.
func call(p exchange.Protocol) (*exchange.Exchange, *client) {
	x, c := new(exchange.Exchange), new(client)
	x.Request.Protocol, x.Request.Method = p, []byte("POST")
	x.Request.Fields.Add("Content-Type", "application/grpc+proto")
	x.Begin(c, new(conn.Alarm), &conn.Info{}, time.Now())
	return x, c
}

func fields(f *exchange.Fields) map[string]string {
	m := map[string]string{}
	for n, v := range f.All() {
		m[string(n)] = string(v)
	}
	return m
}

func TestGRPCStatusOfErrors(t *testing.T) {
	for _, tc := range []struct {
		status int
		code   exchange.Code
		want   string
	}{
		{404, exchange.CodeNoRoute, "12"},
		{401, "unauthorized", "16"},
		{403, "forbidden", "7"},
		{429, exchange.CodeRateLimited, "8"},
		{413, "body_too_large", "8"},
		{503, exchange.CodeNoBackend, "14"},
		{503, exchange.CodeBackendBusy, "14"},
		{503, exchange.CodeConnectFailed, "14"},
		{502, exchange.CodeConnectFailed, "14"},
		{502, exchange.CodeBackendReset, "14"},
		{504, exchange.CodeConnectTimeout, "4"}, // by the time for the whole
		{504, exchange.CodeResponseTimeout, "4"},
		{408, exchange.CodeBodyTimeout, "4"},
		{500, exchange.CodeInternal, "13"},
		{400, exchange.CodeBadRequest, "13"},
		{417, exchange.CodeExpectationFailed, "13"},
		{405, exchange.CodeMethodNotAllowed, "12"},
		{431, exchange.CodeHeaderTooLarge, "8"},
		{421, exchange.CodeMisdirected, "14"},
		{418, "unheard_of", "2"},
	} {
		t.Run(fmt.Sprint(tc.status, " ", tc.code), func(t *testing.T) {
			for _, p := range []exchange.Protocol{exchange.HTTP2, exchange.HTTP11} {
				x, c := call(p)
				x.Response.Trailers.Add("left", "over")
				x.Fail(&exchange.Error{Status: tc.status, Code: tc.code, Public: "Went 100% wróng", RetryAfter: 7, Outcome: exchange.OutcomeFailed})
				got := fields(&x.Response.Fields)
				if c.status != 200 || c.body != "" || c.lasts != 1 || c.aborted || x.Response.Trailers.Len() != 0 {
					t.Errorf("status %d, body %q, %d ends, aborted %v", c.status, c.body, c.lasts, c.aborted)
				}
				if got["Content-Type"] != "application/grpc" || got["grpc-status"] != tc.want || got["grpc-message"] != "Went 100%25 wr%C3%B3ng" || got["Retry-After"] != "7" {
					t.Errorf("head %v", got)
				}
				checkDetails(t, got["grpc-status-details-bin"], tc.want, tc.code)
				if x.Record.Code != tc.code || x.Record.Outcome != exchange.OutcomeFailed {
					t.Errorf("record %s %v", x.Record.Code, x.Record.Outcome)
				}
			}
		})
	}
}

// A backend that cannot be connected to in time is no deadline of the call's: another attempt may go better.
func TestGRPCStatusOfConnectTimeout(t *testing.T) {
	x, _ := call(exchange.HTTP2)
	x.Fail(&exchange.Error{Status: 504, Code: exchange.CodeConnectTimeout, Limit: "transport.connect_timeout"})
	if got := fields(&x.Response.Fields)["grpc-status"]; got != "14" {
		t.Errorf("status %s", got)
	}
}

// checkDetails reads the details as clients do.
func checkDetails(t *testing.T, encoded, status string, code exchange.Code) {
	t.Helper()
	raw, err := base64.RawStdEncoding.DecodeString(encoded)
	var s spb.Status
	if err = errors.Join(err, proto.Unmarshal(raw, &s)); err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(s.GetCode()) != status || s.GetMessage() != "Went 100% wróng" || len(s.GetDetails()) != 1 {
		t.Fatalf("details %v", &s)
	}
	var info errdetails.ErrorInfo
	if err := s.GetDetails()[0].UnmarshalTo(&info); err != nil {
		t.Fatal(err)
	}
	if info.GetReason() != strings.ToUpper(string(code)) || info.GetDomain() != "sluice" {
		t.Errorf("info %v", &info)
	}
}

// holding is a filter that would hold everything back, and fails at the end.
type holding struct{}

func (holding) Filter(dst, _ []byte, last bool) ([]byte, error) {
	if last {
		return nil, errors.New("no")
	}
	return dst, nil
}

func TestGRPCFailureBehindTheHead(t *testing.T) {
	timeout := &exchange.Error{Status: 504, Code: exchange.CodeStreamIdle, Public: "Upstream timeout", Limit: "stream_idle_timeout"}
	for _, tc := range []struct {
		name     string
		protocol exchange.Protocol
		answer   string
		broken   error // of the client's end
		filter   bool
		trailers bool
	}{
		{"http2", exchange.HTTP2, "application/grpc+proto", nil, false, true},
		{"http2 filtered", exchange.HTTP2, "application/grpc", nil, true, true},
		{"http2 that takes nothing", exchange.HTTP2, "application/grpc", errors.New("full"), false, false},
		{"http1.1", exchange.HTTP11, "application/grpc", nil, false, false},
		{"http1.0", exchange.HTTP10, "application/grpc", nil, false, false},
		{"a page instead, which would look whole", exchange.HTTP2, "text/html", nil, false, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			x, c := call(tc.protocol)
			if tc.filter {
				x.FilterResponse(holding{})
			}
			x.Response.Status = 200
			x.Response.Fields.Add("Content-Type", tc.answer)
			if err := x.Send([]byte("\x00\x00\x00\x00\x01"), false); err != nil {
				t.Fatal(err)
			}
			x.Response.Fields.Reset(nil) // they are views, and may be gone by then
			x.Response.Trailers.Add("of-the", "backend")
			c.fail = tc.broken
			x.Fail(timeout)
			got := fields(&x.Response.Trailers)
			delete(got, "grpc-status-details-bin")
			if tc.trailers != (fmt.Sprint(got) == "map[grpc-message:Upstream timeout grpc-status:4]") && tc.broken == nil {
				t.Errorf("trailers %v", got)
			}
			if c.aborted == tc.trailers || x.Record.Outcome != exchange.OutcomeTimeout || x.Record.Code != exchange.CodeStreamIdle {
				t.Errorf("aborted %v, %v %s", c.aborted, x.Record.Outcome, x.Record.Code)
			}
		})
	}
}

func FuzzEscapeGRPC(f *testing.F) {
	f.Add("plain")
	f.Add("100% ü\r\n\x00\xff~")
	f.Fuzz(func(t *testing.T, in string) {
		out := exchange.EscapeGRPC(in)
		if back, err := url.PathUnescape(out); err != nil || back != in {
			t.Errorf("%q became %q, read as %q, %v", in, out, back, err)
		}
		for _, c := range []byte(out) {
			if c < ' ' || c > '~' {
				t.Errorf("%q became %q", in, out)
			}
		}
	})
}
