package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// grpcPath is the method that the bench calls, grpcPrefix what proxies route it by.
const (
	grpcPrefix = "/bench.Echo/"
	grpcPath   = grpcPrefix + "Unary"
)

// grpcRole is the argument by which the program runs as the upstream of the unary calls.
const grpcRole = "grpc-upstream"

// grpcMessage is one message of 32 bytes behind its prefix: not compressed, and its length.
var grpcMessage = append([]byte{0, 0, 0, 0, 32}, bytes.Repeat([]byte{'x'}, 32)...)

// writeCall keeps the message in a file for h2load.
func writeCall(dir string) (string, error) {
	path := filepath.Join(dir, "call.bin")
	if err := os.WriteFile(path, grpcMessage, 0o644); err != nil {
		return "", fmt.Errorf("message of the calls: %w", err)
	}
	return path, nil
}

// startGRPC starts the upstream of the unary calls: this program once more, since what
// speaks HTTP/2 need not be cheap to be the same for every proxy.
func (b *bench) startGRPC(ctx context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding this program: %w", err)
	}
	l, err := startLoad(exec.Command(self, grpcRole, fmt.Sprint(b.basePort+grpcOffset)))
	if err != nil {
		return err
	}
	if _, err := l.next(ctx, "ready", readyTime); err != nil {
		l.finish()
		return fmt.Errorf("upstream of the calls: %w", err)
	}
	b.grpc = l
	return nil
}

// serveGRPC sends the message of each call back, on HTTP/2 in clear text, until the input ends.
func serveGRPC(port string) error {
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", port))
	if err != nil {
		return fmt.Errorf("listening: %w", err)
	}
	s := &http.Server{Handler: http.HandlerFunc(answerCall), ReadHeaderTimeout: time.Minute, Protocols: new(http.Protocols)}
	s.Protocols.SetUnencryptedHTTP2(true)
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
	_ = s.Close()
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving calls: %w", err)
	}
	return nil
}

func answerCall(w http.ResponseWriter, r *http.Request) {
	message, err := io.ReadAll(io.LimitReader(r.Body, 1<<16))
	w.Header().Set("Content-Type", "application/grpc")
	w.Header().Set("Trailer", "Grpc-Status")
	if err == nil {
		_, err = w.Write(message)
	}
	status := "0"
	if err != nil || !bytes.Equal(message, grpcMessage) {
		status = "3" // INVALID_ARGUMENT
	}
	w.Header().Set("Grpc-Status", status)
}

// call makes one unary call through a proxy and checks everything that came back.
func call(ctx context.Context, port int) error {
	t := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true} // loopback, a certificate of our own making
	defer t.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, fmt.Sprintf("https://127.0.0.1:%d%s", port, grpcPath), bytes.NewReader(grpcMessage))
	if err != nil {
		return fmt.Errorf("making a call: %w", err)
	}
	req.Host = "bench.example"
	req.Header.Set("Content-Type", "application/grpc")
	req.Header.Set("TE", "trailers")
	res, err := t.RoundTrip(req)
	if err != nil {
		return fmt.Errorf("calling: %w", err)
	}
	defer res.Body.Close()
	got, err := io.ReadAll(io.LimitReader(res.Body, 1<<16))
	status := res.Trailer.Get("Grpc-Status")
	if err != nil || res.ProtoMajor != 2 || res.StatusCode != http.StatusOK || status != "0" || !bytes.Equal(got, grpcMessage) {
		return fmt.Errorf("the call got %s %d, status %q, %d bytes, %v", res.Proto, res.StatusCode, status, len(got), err)
	}
	return nil
}
