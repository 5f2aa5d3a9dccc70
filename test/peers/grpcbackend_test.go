package peers_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"
)

// testService answers as gRPC's interoperability tests want it, and returns the fields x-echo and echo-bin.
type testService struct {
	testgrpc.UnimplementedTestServiceServer
	cancelled chan error   // how calls have ended for the server
	calls     atomic.Int32 // to UnaryCall and StreamingOutputCall
}

// echoedFields is what a call is answered with besides messages.
func echoedFields(ctx context.Context) metadata.MD {
	md, _ := metadata.FromIncomingContext(ctx)
	return metadata.Join(metadata.MD{"x-echo": md.Get("x-echo")}, metadata.MD{"echo-bin": md.Get("echo-bin")})
}

func (t *testService) UnaryCall(ctx context.Context, in *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
	t.calls.Add(1)
	md := echoedFields(ctx)
	if err := errors.Join(grpc.SetHeader(ctx, md), grpc.SetTrailer(ctx, md)); err != nil {
		return nil, err
	}
	if s := in.GetResponseStatus(); s != nil {
		return nil, status.Error(codes.Code(s.GetCode()), s.GetMessage())
	}
	return &testgrpc.SimpleResponse{Payload: in.GetPayload()}, nil
}

func (t *testService) StreamingOutputCall(in *testgrpc.StreamingOutputCallRequest, s grpc.ServerStreamingServer[testgrpc.StreamingOutputCallResponse]) error {
	t.calls.Add(1)
	for _, p := range in.GetResponseParameters() {
		if err := s.Send(&testgrpc.StreamingOutputCallResponse{Payload: &testgrpc.Payload{Body: make([]byte, p.GetSize())}}); err != nil {
			return err
		}
	}
	return nil
}

// StreamingInputCall sends its head at once, and adds up what comes.
func (t *testService) StreamingInputCall(s grpc.ClientStreamingServer[testgrpc.StreamingInputCallRequest, testgrpc.StreamingInputCallResponse]) error {
	if err := s.SendHeader(nil); err != nil {
		return err
	}
	size := 0
	for {
		in, err := s.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return s.SendAndClose(&testgrpc.StreamingInputCallResponse{AggregatedPayloadSize: int32(size)})
		case err != nil:
			return err
		}
		size += len(in.GetPayload().GetBody())
	}
}

// FullDuplexCall answers each message with its payload until the client's end.
func (t *testService) FullDuplexCall(s grpc.BidiStreamingServer[testgrpc.StreamingOutputCallRequest, testgrpc.StreamingOutputCallResponse]) error {
	for {
		in, err := s.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			t.cancelled <- err
			return err
		}
		if err := s.Send(&testgrpc.StreamingOutputCallResponse{Payload: in.GetPayload()}); err != nil {
			return err
		}
	}
}

// startTestService runs a testService, and returns its address.
func startTestService(t testing.TB, secure bool) string {
	t.Helper()
	address, _ := runTestService(t, secure)
	return address
}

func runTestService(t testing.TB, secure bool) (string, *testService) {
	t.Helper()
	var opts []grpc.ServerOption
	if secure {
		pair, err := tls.X509KeyPair(certificate())
		if err != nil {
			t.Fatal(err)
		}
		opts = append(opts, grpc.Creds(credentials.NewServerTLSFromCert(&pair)))
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s, service := grpc.NewServer(opts...), &testService{cancelled: make(chan error, 10)}
	testgrpc.RegisterTestServiceServer(s, service)
	reflection.Register(s)
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	t.Cleanup(func() { s.Stop(); <-done })
	return l.Addr().String(), service
}
