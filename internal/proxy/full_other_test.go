//go:build !linux

package proxy_test

import (
	"errors"
	"net"
	"testing"
)

func fullListener() (addr string, free func(), err error) {
	return "", nil, errors.New("needs Linux: a listener whose queue is full")
}

// reserved returns an address that nobody listens on until listen is called, if nobody else takes it.
func reserved(t testing.TB) (addr string, listen func() (net.Listener, error)) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	addr = l.Addr().String()
	return addr, func() (net.Listener, error) { return net.Listen("tcp", addr) }
}
