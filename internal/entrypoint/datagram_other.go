//go:build !linux

package entrypoint

import "errors"

var errNoDatagrams = errors.New("protocol udp is served on Linux only")

// bindDatagrams is not there: sockets of datagrams are read by system calls of Linux.
func bindDatagrams(*socket, int, bool) error { return errNoDatagrams }

// adoptDatagrams is not there either.
func (s *socket) adoptDatagrams([]inheritedSocket, func() bool) error { return errNoDatagrams }
