package cert

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"time"
)

// Minter certifies keys for what an actor is shown in the place of an origin: a name or an address, the other is zero. The
// request (DER) proves that whoever asks has the key. The chain is DER, leaf first. What is wrong with what is asked for is
// ErrRequest. An *Authority is one, and a SocketMinter is one in another process, where the authority's key stays.
type Minter interface {
	Mint(ctx context.Context, request []byte, name string, addr netip.Addr) ([][]byte, error)
}

// Bounds of minting over a socket.
const (
	maxMintName    = 253
	maxMintMessage = 64 << 10
	mintTimeout    = 4 * time.Second
	mintPath       = "/mint"
)

// Mint implements Minter. Whatever the authority is, it issues an interception leaf and nothing else.
func (a *Authority) Mint(ctx context.Context, request []byte, name string, addr netip.Addr) ([][]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	if (name == "") == !addr.IsValid() || addr.Zone() != "" {
		return nil, fmt.Errorf("exactly one of a name and an address: %w", ErrRequest)
	}
	if name != "" && !mintable(name) {
		return nil, fmt.Errorf("%.80q is no host name in normal form: %w", name, ErrRequest)
	}
	return a.IssueFor(request, InterceptionLeaf(name, addr))
}

// mintable reports whether s is a name that a leaf may have: labels of lower-case letters, digits and hyphens, joined by dots,
// and no pattern.
func mintable(s string) bool {
	if len(s) > maxMintName {
		return false
	}
	for label := range strings.SplitSeq(s, ".") {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
		for _, c := range []byte(label) {
			if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '_' {
				return false
			}
		}
	}
	return true
}

// mintRequest and mintAnswer are the messages on the socket, JSON, one each in a POST of HTTP/1.1.
type mintRequest struct {
	Request []byte     `json:"request"`
	Name    string     `json:"name,omitempty"`
	Addr    netip.Addr `json:"addr,omitzero"`
}

type mintAnswer struct {
	Chain [][]byte `json:"chain,omitempty"`
	Error string   `json:"error,omitempty"`
}

// ListenMinter binds a socket that only the owner of this process, and root, can use. What is left of a process that has
// ended there is removed; the directory must be nobody else's to write.
func ListenMinter(path string) (net.Listener, error) {
	if info, err := os.Lstat(path); err == nil && info.Mode().Type() == os.ModeSocket {
		if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
			_ = c.Close()
			return nil, fmt.Errorf("%s: %w", path, ErrLocked)
		}
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// ServeMinter serves a minter on a listener, which it closes, until ctx ends.
func ServeMinter(ctx context.Context, l net.Listener, m Minter, log *slog.Logger) error {
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+mintPath, func(w http.ResponseWriter, r *http.Request) { serveMint(w, r, m, log) })
	s := &http.Server{
		Handler: mux, ReadTimeout: mintTimeout, WriteTimeout: mintTimeout, IdleTimeout: time.Minute, MaxHeaderBytes: 4096,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
	stop := context.AfterFunc(ctx, func() { _ = s.Close() })
	defer stop()
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func serveMint(w http.ResponseWriter, r *http.Request, m Minter, log *slog.Logger) {
	var q mintRequest
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxMintMessage))
	d.DisallowUnknownFields()
	status, answer := http.StatusOK, mintAnswer{}
	err := d.Decode(&q)
	if err != nil {
		err = fmt.Errorf("%w: %w", ErrRequest, err)
	} else {
		answer.Chain, err = m.Mint(r.Context(), q.Request, q.Name, q.Addr)
	}
	switch {
	case errors.Is(err, ErrRequest):
		status, answer = http.StatusBadRequest, mintAnswer{Error: err.Error()}
	case err != nil:
		log.Error("minting a certificate", "name", q.Name, "error", err)
		status, answer = http.StatusInternalServerError, mintAnswer{Error: "the authority cannot sign now"}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(answer) // the caller has left, else
}

// SocketMinter is a Minter behind a Unix socket. Its methods are safe for concurrent use; the caller closes it.
type SocketMinter struct {
	path      string
	client    *http.Client
	transport *http.Transport
}

// NewSocketMinter makes a client of the minter at a socket. It connects when it is used, with at most 8 connections.
func NewSocketMinter(path string) *SocketMinter {
	t := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", path)
		},
		MaxConnsPerHost: 8, IdleConnTimeout: 30 * time.Second, DisableCompression: true,
	}
	return &SocketMinter{path: path, transport: t, client: &http.Client{Transport: t, Timeout: mintTimeout}}
}

// Close closes idle connections.
func (m *SocketMinter) Close() error {
	m.transport.CloseIdleConnections()
	return nil
}

// Mint implements Minter. It takes 4 s at most.
func (m *SocketMinter) Mint(ctx context.Context, request []byte, name string, addr netip.Addr) ([][]byte, error) {
	body, err := json.Marshal(mintRequest{Request: request, Name: name, Addr: addr})
	if err != nil {
		return nil, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://minter"+mintPath, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	resp, err := m.client.Do(r)
	if err != nil {
		return nil, fmt.Errorf("asking the minter at %s: %w", m.path, err)
	}
	defer func() { _ = resp.Body.Close() }()
	var answer mintAnswer
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxMintMessage)).Decode(&answer); err != nil {
		return nil, fmt.Errorf("reading the answer of the minter at %s: %w", m.path, err)
	}
	switch {
	case resp.StatusCode == http.StatusBadRequest:
		return nil, fmt.Errorf("the minter: %s: %w", answer.Error, ErrRequest)
	case resp.StatusCode != http.StatusOK || len(answer.Chain) == 0:
		return nil, fmt.Errorf("the minter at %s answers %d: %s", m.path, resp.StatusCode, answer.Error)
	}
	return answer.Chain, nil
}
