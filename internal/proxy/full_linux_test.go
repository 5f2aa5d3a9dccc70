package proxy_test

import (
	"fmt"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// fullListener returns the address of a listener whose queue is full, so that connecting to it hangs.
func fullListener() (addr string, free func(), err error) {
	fd, addr, err := bound()
	if err != nil {
		return "", nil, err
	}
	if err := unix.Listen(fd, 0); err != nil {
		unix.Close(fd)
		return "", nil, fmt.Errorf("listening: %v", err)
	}
	var held []net.Conn
	free = func() {
		for _, c := range held {
			c.Close()
		}
		unix.Close(fd)
	}
	for range 16 {
		c, err := net.DialTimeout("tcp", addr, 200*time.Millisecond)
		if err != nil {
			return addr, free, nil
		}
		held = append(held, c)
	}
	free()
	return "", nil, fmt.Errorf("the queue of a listener takes %d connections", len(held))
}

// bound returns a socket with an address of its own, on which it does not listen yet.
func bound() (fd int, addr string, err error) {
	fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, "", err
	}
	err = unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}})
	sa, serr := unix.Getsockname(fd)
	if err != nil || serr != nil {
		unix.Close(fd)
		return 0, "", fmt.Errorf("binding: %v, %v", err, serr)
	}
	return fd, fmt.Sprintf("127.0.0.1:%d", sa.(*unix.SockaddrInet4).Port), nil
}

// reserved returns an address that nobody listens on, nor can, until listen is called or the test ends.
func reserved(t testing.TB) (addr string, listen func() (net.Listener, error)) {
	t.Helper()
	fd, addr, err := bound()
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), addr)
	t.Cleanup(func() { _ = f.Close() })
	return addr, func() (net.Listener, error) {
		defer f.Close() // what is returned has one of its own
		if err := unix.Listen(fd, 128); err != nil {
			return nil, err
		}
		return net.FileListener(f)
	}
}
