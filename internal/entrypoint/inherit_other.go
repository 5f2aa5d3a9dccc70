//go:build !linux

package entrypoint

import (
	"errors"
	"net"
	"os"
)

// inheritFD checks a descriptor and takes it over.
func inheritFD(fd int) (*os.File, net.Addr, error) {
	f := os.NewFile(uintptr(fd), "inherited")
	ln, err := net.FileListener(f)
	if err != nil {
		_ = f.Close()
		return nil, nil, err
	}
	bound := ln.Addr()
	return f, bound, ln.Close()
}

// adoptFiles makes the first of the inherited sockets the acceptor of s and closes the files.
func (s *socket) adoptFiles(socks []inheritedSocket, _ rawAccept) error {
	ln, err := net.FileListener(socks[0].file)
	for _, in := range socks {
		_ = in.file.Close()
	}
	if err != nil {
		return err
	}
	s.bound = ln.Addr()
	s.acceptors = []acceptor{&plainAcceptor{ln: ln}}
	return nil
}

// socketPair is not to be had: an entrypoint with HTTP/3 cannot be handed over.
func socketPair() (ours *net.UnixConn, theirs *os.File, err error) {
	return nil, nil, errors.ErrUnsupported
}
