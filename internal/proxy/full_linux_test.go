package proxy_test

import (
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// fullListener returns the address of a listener whose queue is full, so that connecting to it hangs.
func fullListener() (addr string, free func(), err error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return "", nil, err
	}
	if err = unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err == nil {
		err = unix.Listen(fd, 0)
	}
	sa, serr := unix.Getsockname(fd)
	if err != nil || serr != nil {
		unix.Close(fd)
		return "", nil, fmt.Errorf("listening: %v, %v", err, serr)
	}
	addr = fmt.Sprintf("127.0.0.1:%d", sa.(*unix.SockaddrInet4).Port)
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
