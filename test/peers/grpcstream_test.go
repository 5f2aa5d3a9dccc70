package peers_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// grpcFrame is a message with its length.
func grpcFrame(t testing.TB, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(b))), b...)
}

// odd is a server that speaks HTTP/2 in clear text, and gRPC as far as a test wants it to.
func odd(t testing.TB, serve http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewUnstartedServer(serve)
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Start()
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

// begin answers with a head and a message.
func begin(t testing.TB, w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/grpc")
	_, _ = w.Write(grpcFrame(t, &testgrpc.StreamingOutputCallResponse{Payload: &testgrpc.Payload{Body: []byte("first")}}))
	w.(http.Flusher).Flush()
}

// TestGRPCStreamThatBreaks has a real client see why a stream ends that has begun.
func TestGRPCStreamThatBreaks(t *testing.T) {
	t.Parallel()
	left := make(chan struct{}, 1)
	address := odd(t, func(w http.ResponseWriter, r *http.Request) {
		begin(t, w)
		switch r.Header.Get("X-Test") {
		case "reset":
			panic(http.ErrAbortHandler)
		case "half":
			_, _ = w.Write([]byte{0, 0, 0, 0, 9, 1})
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		case "no trailers":
			return
		}
		<-r.Context().Done()
		left <- struct{}{}
	})
	s := serveGRPC(t, address, false)
	c := dialGRPC(t, s.address, false)
	for _, tc := range []struct {
		name   string
		status codes.Code
		reason string
	}{
		{"reset", codes.Unavailable, "BACKEND_RESET"},
		{"half", codes.Internal, ""}, // the library looks at the message that it has been left with
		{"no trailers", codes.Unknown, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			call, err := c.FullDuplexCall(metadata.AppendToOutgoingContext(ctx, "x-test", tc.name))
			if err != nil {
				t.Fatal(err)
			}
			if m, err := call.Recv(); err != nil || string(m.GetPayload().GetBody()) != "first" {
				t.Fatalf("%v, %v", m, err)
			}
			_, err = call.Recv()
			if tc.reason == "" {
				if err == nil || errors.Is(err, io.EOF) {
					t.Errorf("the call ended with %v", err)
				}
				return
			}
			checkStatus(t, err, tc.status, tc.reason)
		})
	}
	t.Run("deadline", func(t *testing.T) {
		// A client without a deadline of its own, and a backend that does not look at the field.
		tr := &http.Transport{Protocols: new(http.Protocols)}
		tr.Protocols.SetUnencryptedHTTP2(true)
		defer tr.CloseIdleConnections()
		body := bytes.NewReader(grpcFrame(t, &testgrpc.StreamingOutputCallRequest{}))
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+s.address+"/grpc.testing.TestService/FullDuplexCall", body)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/grpc")
		req.Header.Set("Te", "trailers")
		req.Header.Set("Grpc-Timeout", "3S") // in which the first message has to come
		begun := time.Now()
		res, err := tr.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		got, err := io.ReadAll(res.Body)
		if took := time.Since(begun); err != nil || took < 3*time.Second || took > patience {
			t.Errorf("after %v: %q, %v", took, got, err)
		}
		if !bytes.HasSuffix(got, []byte("first")) || res.Trailer.Get("Grpc-Status") != "4" || res.Trailer.Get("Grpc-Message") != "Deadline exceeded" {
			t.Errorf("%q, %v", got, res.Trailer)
		}
		select {
		case <-left:
		case <-time.After(patience):
			t.Error("the backend's call goes on")
		}
	})
}

// TestGRPCSilence has one side of a stream, and then both, say nothing for longer than bodies and streams may idle.
func TestGRPCSilence(t *testing.T) {
	t.Parallel()
	address, _ := runTestService(t, false)
	gw := start(t, fmt.Sprintf(`
entrypoints "clear" { address = "127.0.0.1:0", body_idle_timeout = "300ms" }
routers "all" { rule = "PathPrefix(%[2]s/%[2]s)", service = "backend" }
services "backend" {
  load_balancer {
    stream_idle_timeout = "3s"
    servers { url = "h2c://%[1]s" }
  }
}
`, address, "`"))
	c := dialGRPC(t, gw.Addr("clear"), false)
	call, err := c.StreamingInputCall(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for range 5 { // longer than the answer might pause
		if err := call.Send(&testgrpc.StreamingInputCallRequest{Payload: &testgrpc.Payload{Body: []byte("x")}}); err != nil {
			t.Fatal(err)
		}
		<-tick.C
	}
	if out, err := call.CloseAndRecv(); err != nil || out.GetAggregatedPayloadSize() != 5 {
		t.Errorf("%v, %v", out, err)
	}
	begun := time.Now()
	silent, err := c.StreamingInputCall(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	err = silent.RecvMsg(new(testgrpc.StreamingInputCallResponse))
	if took := time.Since(begun); took < 2900*time.Millisecond || took > patience {
		t.Errorf("it took %v", took)
	}
	checkStatus(t, err, codes.DeadlineExceeded, "STREAM_IDLE_TIMEOUT")
}

// TestGRPCCancel sees the server's side of a call that its client gives up.
func TestGRPCCancel(t *testing.T) {
	t.Parallel()
	inGRPCModes(t, func(t *testing.T, secure bool) {
		address, service := runTestService(t, secure)
		s := serveGRPC(t, address, secure)
		ctx, cancel := context.WithCancel(t.Context())
		call, err := dialGRPC(t, s.address, secure).FullDuplexCall(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := call.Send(&testgrpc.StreamingOutputCallRequest{}); err != nil {
			t.Fatal(err)
		}
		if _, err := call.Recv(); err != nil {
			t.Fatal(err)
		}
		cancel()
		select {
		case err := <-service.cancelled:
			if status.Code(err) != codes.Canceled {
				t.Errorf("the server is told %v", err)
			}
		case <-time.After(patience):
			t.Error("not told")
		}
		eventually(t, patience, "a line in the log", func() bool { return len(s.entries(t)) == 1 })
		if e := s.entries(t)[0]; e.Outcome != "disconnected" || e.ErrorCode != "client_gone" {
			t.Errorf("logged %+v", e)
		}
	})
}

// KF-H2G-01 and KF-H2G-02: trailers arrive though nothing announced them, and a backend that insists on TE gets it, exactly.
func TestKF_H2G_01_02(t *testing.T) {
	t.Parallel()
	te := make(chan string, 1)
	s := serveGRPC(t, odd(t, func(w http.ResponseWriter, r *http.Request) {
		te <- strings.Join(r.Header["Te"], "|")
		begin(t, w)
		w.Header().Set(http.TrailerPrefix+"grpc-status", "0")
		w.Header().Set(http.TrailerPrefix+"x-t", "1")
	}), false)
	for _, tc := range []struct {
		name, contentType, te, want string
		version                     int
	}{
		{"h2", "application/grpc", "trailers", "trailers", 2},
		{"h2 without", "application/grpc", "", "", 2},
		{"h2 but no call", "application/json", "trailers", "trailers", 2},
		{"h1", "application/grpc+proto", "deflate;q=0.5, trailers", "trailers", 1},
		{"h1 without", "application/grpc", "deflate", "", 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tr := &http.Transport{Protocols: new(http.Protocols)}
			tr.Protocols.SetHTTP1(tc.version == 1)
			tr.Protocols.SetUnencryptedHTTP2(tc.version == 2)
			defer tr.CloseIdleConnections()
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+s.clear+"/a.B/C", strings.NewReader("x"))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", tc.contentType)
			if tc.te != "" {
				req.Header.Set("Te", tc.te)
				if tc.version == 1 {
					req.Header.Set("Connection", "TE")
				}
			}
			res, err := tr.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			if _, err := io.ReadAll(res.Body); err != nil {
				t.Fatal(err)
			}
			if got := <-te; got != tc.want {
				t.Errorf("TE %q, want %q", got, tc.want)
			}
			if res.ProtoMajor != tc.version || res.Trailer.Get("Grpc-Status") != "0" || res.Trailer.Get("X-T") != "1" {
				t.Errorf("%s, trailers %v", res.Proto, res.Trailer)
			}
		})
	}
}

// KF-H2G-03: with another backend to go to when the first refuses, calls end as their one backend says.
func TestKF_H2G_03(t *testing.T) {
	t.Parallel()
	address, service := runTestService(t, false)
	gone := freePort(t)
	gw := start(t, fmt.Sprintf(`
entrypoints "clear" { address = "127.0.0.1:0" }
routers "all" { rule = "PathPrefix(%[3]s/%[3]s)", service = "backend" }
services "backend" {
  load_balancer {
    servers { url = "h2c://127.0.0.1:%[1]d" }
    servers { url = "h2c://%[2]s" }
  }
}
`, gone, address, "`"))
	c := dialGRPC(t, gw.Addr("clear"), false)
	for i, want := range []codes.Code{codes.OK, codes.Unavailable, codes.ResourceExhausted, codes.OK} {
		in := &testgrpc.SimpleRequest{Payload: &testgrpc.Payload{Body: []byte("x")}}
		if want != codes.OK {
			in.ResponseStatus = &testgrpc.EchoStatus{Code: int32(want), Message: "as it is"}
		}
		out, err := c.UnaryCall(t.Context(), in)
		if s := status.Convert(err); s.Code() != want || want != codes.OK && s.Message() != "as it is" || want == codes.OK && string(out.GetPayload().GetBody()) != "x" {
			t.Errorf("call %d: %v, %v", i, out, err)
		}
		call, err := c.StreamingOutputCall(t.Context(), &testgrpc.StreamingOutputCallRequest{ResponseParameters: make([]*testgrpc.ResponseParameters, 3)})
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for {
			if _, err = call.Recv(); err != nil {
				break
			}
			n++
		}
		if !errors.Is(err, io.EOF) || n != 3 {
			t.Errorf("stream %d: %d messages, %v", i, n, err)
		}
	}
	if n := service.calls.Load(); n != 8 {
		t.Errorf("%d calls at the backend", n)
	}
}

// KF-CFG-13: a stream over cleartext HTTP/2 is part of the drain, on both sides of the gateway.
func TestKF_CFG_13(t *testing.T) {
	t.Parallel()
	inGRPCModes(t, func(t *testing.T, secure bool) {
		address, _ := runTestService(t, secure)
		s := serveGRPC(t, address, secure)
		c := dialGRPC(t, s.address, secure)
		call, err := c.FullDuplexCall(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		exchange := func(text string) {
			t.Helper()
			payload := &testgrpc.Payload{Body: []byte(text)}
			if err := call.Send(&testgrpc.StreamingOutputCallRequest{Payload: payload}); err != nil {
				t.Fatal(err)
			}
			if m, err := call.Recv(); err != nil || string(m.GetPayload().GetBody()) != text {
				t.Fatalf("%v, %v", m, err)
			}
		}
		exchange("before")
		down := make(chan error, 1)
		go func() { down <- s.gw.Shutdown(context.WithoutCancel(t.Context())) }()
		eventually(t, patience, "new calls are refused", func() bool {
			_, err := dialGRPC(t, s.address, secure).UnaryCall(t.Context(), &testgrpc.SimpleRequest{})
			return status.Code(err) == codes.Unavailable
		})
		exchange("meanwhile")
		select {
		case err := <-down:
			t.Fatalf("ended under an open stream: %v", err)
		default:
		}
		if err := call.CloseSend(); err != nil {
			t.Fatal(err)
		}
		if _, err := call.Recv(); !errors.Is(err, io.EOF) {
			t.Errorf("the stream ended with %v", err)
		}
		select {
		case err := <-down:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(patience):
			t.Error("still draining")
		}
	})
}
