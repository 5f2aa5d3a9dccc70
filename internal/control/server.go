package control

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"runtime/debug"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/sluice-proxy/sluice/api/ateapi"
	"github.com/sluice-proxy/sluice/api/atenetx"
	"github.com/sluice-proxy/sluice/internal/actor"
)

// Bounds of a Server.
const (
	// MaxMessage bounds a message, in bytes.
	MaxMessage = 2 << 20
	// maxStreams bounds the calls under way on one connection.
	maxStreams = 1000
	// maxHeaders bounds the fields of a call, in bytes.
	maxHeaders = 16 << 10
	// nobodyStays bounds the connection of a client without a certificate.
	nobodyStays = 5 * time.Second
)

// Caller is who calls, as the connection has proven.
type Caller struct {
	ID    string    // SPIFFE ID
	Until time.Time // when the proof ends
}

// Identify reads the caller out of a connection. A client that has shown no certificate is the zero Caller; one whose certificate
// is not acceptable, or not any more, is an error.
type Identify func(tls.ConnectionState) (Caller, error)

// ServerOptions describe a Server. Everything is required but Log.
type ServerOptions struct {
	Plane Plane
	Hosts *Hosts
	Roles Roles
	// TLS is the server's side. It may let clients without a certificate in: their calls are Unauthenticated, and their
	// connections end after 5 s.
	TLS      *tls.Config
	Identify Identify
	Log      *slog.Logger // nil discards
}

// Server serves the control plane by gRPC. Its methods are safe for concurrent use.
type Server struct {
	grpc *grpc.Server
	o    ServerOptions
}

// NewServer makes a server that serves nothing yet.
func NewServer(o ServerOptions) *Server {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s := &Server{o: o}
	s.grpc = grpc.NewServer(
		grpc.Creds(handshakes{credentials.NewTLS(o.TLS)}),
		grpc.MaxRecvMsgSize(MaxMessage), grpc.MaxConcurrentStreams(maxStreams), grpc.MaxHeaderListSize(maxHeaders), grpc.ConnectionTimeout(10*time.Second),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
		grpc.WaitForHandlers(true), // they use what the owner closes after Stop
		grpc.UnaryInterceptor(s.unary), grpc.StreamInterceptor(s.stream),
		grpc.UnknownServiceHandler(func(any, grpc.ServerStream) error {
			return status.Error(codes.Unimplemented, "the method is not carried")
		}),
	)
	ateapi.RegisterControlServer(s.grpc, &controlServer{plane: o.Plane, hosts: o.Hosts})
	ateapi.RegisterWorkerServiceServer(s.grpc, &workerServer{plane: o.Plane})
	atenetx.RegisterHostServer(s.grpc, &hostServer{plane: o.Plane, hosts: o.Hosts, log: o.Log})
	return s
}

// handshakes lets a client without a certificate stay for as long as it takes to hear what it lacks: it would have the place of
// one that may call.
type handshakes struct {
	credentials.TransportCredentials
}

func (h handshakes) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	c, info, err := h.TransportCredentials.ServerHandshake(raw)
	if t, ok := info.(credentials.TLSInfo); err == nil && (!ok || len(t.State.PeerCertificates) == 0) {
		time.AfterFunc(nobodyStays, func() { _ = raw.Close() }) // also when it is closed already, which does no harm
	}
	return c, info, err
}

func (h handshakes) Clone() credentials.TransportCredentials {
	return handshakes{h.TransportCredentials.Clone()}
}

// Serve serves the connections of a listener, which it closes, until Stop.
func (s *Server) Serve(l net.Listener) error { return s.grpc.Serve(l) }

// Stop ends the streams of workers, lets calls that are under way end, and after the wait ends their connections. It returns when no
// call runs any more, also of callers that have left: without workers all of them end soon.
func (s *Server) Stop(wait time.Duration) {
	hard := time.AfterFunc(wait, s.grpc.Stop) // before the streams: one whose worker does not read ends with its connection
	defer hard.Stop()
	s.o.Hosts.Close()
	s.grpc.GracefulStop()
}

// callerKey is where the caller is in a context.
type callerKey struct{}

// callerOf is who calls. A context without one is nobody's.
func callerOf(ctx context.Context) Caller {
	c, _ := ctx.Value(callerKey{}).(Caller)
	return c
}

// authorize says who calls, or refuses. Identities are proven again for each call: a connection may outlive a certificate.
func (s *Server) authorize(ctx context.Context, method string, known bool) (context.Context, error) {
	p, ok := peer.FromContext(ctx)
	info, isTLS := credentials.TLSInfo{}, false
	if ok {
		info, isTLS = p.AuthInfo.(credentials.TLSInfo)
	}
	if !isTLS {
		return nil, status.Error(codes.Unauthenticated, "a client certificate is required")
	}
	caller, err := s.o.Identify(info.State)
	if err != nil {
		s.o.Log.Warn("a caller was refused", "method", method, "peer", p.Addr.String(), "error", err)
		return nil, status.Error(codes.Unauthenticated, "the client certificate is not acceptable")
	}
	if caller.ID == "" {
		return nil, status.Error(codes.Unauthenticated, "a client certificate is required")
	}
	if known && !Allowed(s.o.Roles.Of(caller.ID), method) {
		s.o.Log.Warn("a caller was refused", "method", method, "caller", caller.ID, "reason", "no role allows it")
		return nil, status.Errorf(codes.PermissionDenied, "%s may not call %s", caller.ID, method)
	}
	return context.WithValue(ctx, callerKey{}, caller), nil
}

func (s *Server) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (answer any, err error) {
	defer s.recovered(info.FullMethod, &err)
	if ctx, err = s.authorize(ctx, info.FullMethod, true); err != nil {
		return nil, err
	}
	answer, err = next(ctx, req)
	return answer, s.tell(info.FullMethod, err)
}

// authorizedStream is a stream whose context names the caller.
type authorizedStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s authorizedStream) Context() context.Context { return s.ctx }

// stream also has the methods that nobody carries: whoever is somebody hears so.
func (s *Server) stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) (err error) {
	defer s.recovered(info.FullMethod, &err)
	_, known := callers[info.FullMethod]
	ctx, err := s.authorize(stream.Context(), info.FullMethod, known)
	if err != nil {
		return err
	}
	return s.tell(info.FullMethod, next(srv, authorizedStream{stream, ctx}))
}

// recovered turns a panic into an error: one call fails, not the process.
func (s *Server) recovered(method string, err *error) {
	if p := recover(); p != nil {
		s.o.Log.Error("a call panicked", "method", method, "panic", p, "stack", string(debug.Stack()))
		*err = status.Error(codes.Internal, "internal error")
	}
}

// tell makes an error what the caller is told. What is not meant for callers is logged.
func (s *Server) tell(method string, err error) error {
	if err == nil {
		return nil
	}
	if e := (*actor.Error)(nil); errors.As(err, &e) {
		return status.Error(codes.Code(e.Code), e.Text)
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return status.FromContextError(err).Err()
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	s.o.Log.Error("a call failed", "method", method, "error", err)
	return status.Error(codes.Internal, "internal error")
}
