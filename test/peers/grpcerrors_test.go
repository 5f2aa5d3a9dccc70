package peers_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/sluice-proxy/sluice/internal/gatewaytest"
)

// dialGRPC is a client of a gateway's address, in clear text or over TLS.
func dialGRPC(t testing.TB, address string, secure bool) testgrpc.TestServiceClient {
	t.Helper()
	c := insecure.NewCredentials()
	if secure {
		c = credentials.NewTLS(clientTLS("h2"))
	}
	cc, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(c), grpc.WithDisableServiceConfig())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cc.Close() })
	return testgrpc.NewTestServiceClient(cc)
}

// checkStatus compares how a call has ended, with the code that a program would look at.
func checkStatus(t *testing.T, err error, want codes.Code, reason string) {
	t.Helper()
	s, ok := status.FromError(err)
	if !ok || s.Code() != want {
		t.Errorf("the call ended with %v, want %v", err, want)
	}
	got := ""
	for _, d := range s.Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			got = info.GetReason()
		}
	}
	if got != reason {
		t.Errorf("reason %q of %v, want %q", got, err, reason)
	}
}

// silentListener accepts connections and never says anything.
func silentListener(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l.Addr().String()
}

// TestGRPCErrors has a real client see what the gateway itself answers with.
func TestGRPCErrors(t *testing.T) {
	t.Parallel()
	silent := silentListener(t)
	slow := odd(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	gone := gatewaytest.FreeAddress(t)
	gw := start(t, fmt.Sprintf(`
entrypoints "clear" { address = "127.0.0.1:0" }
routers "refused" { rule = "Path(%[3]sUnaryCall%[4]s)", service = "gone", entrypoints = ["clear"] }
routers "slow" { rule = "Path(%[3]sEmptyCall%[4]s)", service = "slow", entrypoints = ["clear"] }
routers "unconnected" { rule = "Path(%[3]sHalfDuplexCall%[4]s)", service = "silent", entrypoints = ["clear"] }
routers "none" { rule = "Path(%[3]sStreamingInputCall%[4]s)", service = "none", entrypoints = ["clear"] }
routers "limited" { rule = "Path(%[3]sCacheableUnaryCall%[4]s)", service = "gone", entrypoints = ["clear"], middlewares = ["limit"] }
services "gone" {
  load_balancer { servers { url = "http://%[1]s" } }
}
services "silent" {
  load_balancer { servers { url = "http://%[2]s" } }
  transport { connect_timeout = "300ms" }
}
services "slow" {
  load_balancer {
    request_timeout = "2s"
    servers { url = "http://%[5]s" }
  }
}
services "none" {
  load_balancer { servers { url = "http://%[1]s", weight = 0 } }
}
middlewares "limit" { type = "rate-limit", rate = 0, burst = 1 }
`, gone, silent, "`/grpc.testing.TestService/", "`", slow))
	c := dialGRPC(t, gw.Addr("clear"), false)
	within := func(d time.Duration) context.Context {
		ctx, cancel := context.WithTimeout(t.Context(), d)
		t.Cleanup(cancel)
		return ctx
	}
	long := within(20 * time.Second)
	for _, tc := range []struct {
		name   string
		call   func(opts ...grpc.CallOption) error
		status codes.Code
		reason string
	}{
		{"no route", func(opts ...grpc.CallOption) error {
			_, err := c.UnimplementedCall(long, &testgrpc.Empty{}, opts...)
			return err
		}, codes.Unimplemented, "NO_ROUTE"},
		{"refused", func(opts ...grpc.CallOption) error {
			_, err := c.UnaryCall(long, &testgrpc.SimpleRequest{}, opts...)
			return err
		}, codes.Unavailable, "CONNECT_FAILED"},
		{"request_timeout", func(opts ...grpc.CallOption) error {
			_, err := c.EmptyCall(long, &testgrpc.Empty{}, opts...)
			return err
		}, codes.DeadlineExceeded, "RESPONSE_TIMEOUT"},
		{"connect_timeout", func(opts ...grpc.CallOption) error {
			s, err := c.HalfDuplexCall(long, opts...)
			if err != nil {
				return err
			}
			_, err = s.Recv()
			return err
		}, codes.Unavailable, "CONNECT_TIMEOUT"},
		{"no backend, in a stream", func(opts ...grpc.CallOption) error {
			s, err := c.StreamingInputCall(long, opts...)
			if err != nil {
				return err
			}
			_, err = s.CloseAndRecv()
			return err
		}, codes.Unavailable, "NO_BACKEND"},
		{"the last that the limit allows", func(opts ...grpc.CallOption) error {
			_, err := c.CacheableUnaryCall(long, &testgrpc.SimpleRequest{}, opts...)
			return err
		}, codes.Unavailable, "CONNECT_FAILED"},
		{"rate limit", func(opts ...grpc.CallOption) error {
			_, err := c.CacheableUnaryCall(long, &testgrpc.SimpleRequest{}, opts...)
			return err
		}, codes.ResourceExhausted, "RATE_LIMITED"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var head, trailer metadata.MD
			checkStatus(t, tc.call(grpc.Header(&head), grpc.Trailer(&trailer)), tc.status, tc.reason)
			if id := append(head.Get("x-request-id"), trailer.Get("x-request-id")...); len(id) != 1 {
				t.Errorf("request id %q", id)
			}
			if s := status.Convert(tc.call()); strings.ContainsAny(s.Message(), ":0123456789") {
				t.Errorf("the client is told %q", s.Message())
			}
		})
	}
}
