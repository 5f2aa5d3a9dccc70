package entrypoint

import (
	"encoding/binary"
	"os"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// diagTimeout bounds the wait for an answer of the kernel, which comes at once.
const diagTimeout = 100 * time.Millisecond

// diagRequest is struct inet_diag_req_v2 of linux/inet_diag.h behind its netlink header; the family and the port are
// the only ones of its fields that are set here besides the states.
type diagRequest struct {
	header   unix.NlMsghdr
	family   uint8
	protocol uint8
	_        [2]uint8
	states   uint32
	port     [2]byte // of the listening socket, in network order
	_        [46]byte
}

// stateSynReceived is TCPF_SYN_RECV of linux/tcp_states.h.
const stateSynReceived = 1 << unix.BPF_TCP_SYN_RECV

// handshaking reports whether a client of a local TCP port has been told that it is connected, or is about to be, and
// the kernel has not put the connection into the queue of its listening socket yet. See sock_diag(7).
func handshaking(port uint16) (bool, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return false, os.NewSyscallError("socket", err)
	}
	defer func() { _ = unix.Close(fd) }()
	timeout := unix.NsecToTimeval(diagTimeout.Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
		return false, os.NewSyscallError("setsockopt", err)
	}
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		if some, err := diag(fd, family, port); some || err != nil {
			return some, err
		}
	}
	return false, nil
}

// diag asks for the handshakes of one family.
func diag(fd int, family uint8, port uint16) (bool, error) {
	r := diagRequest{family: family, protocol: unix.IPPROTO_TCP, states: stateSynReceived}
	r.header = unix.NlMsghdr{Len: uint32(unsafe.Sizeof(r)), Type: unix.SOCK_DIAG_BY_FAMILY, Flags: unix.NLM_F_REQUEST | unix.NLM_F_DUMP}
	binary.BigEndian.PutUint16(r.port[:], port)
	if err := unix.Sendto(fd, unsafe.Slice((*byte)(unsafe.Pointer(&r)), unsafe.Sizeof(r)), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return false, os.NewSyscallError("sendto", err)
	}
	some := false
	buf := make([]byte, 32<<10) // the kernel writes messages of at most this size
	for {
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if err != nil {
			return some, os.NewSyscallError("recvfrom", err)
		}
		messages, err := syscall.ParseNetlinkMessage(buf[:n])
		if err != nil {
			return some, err
		}
		for _, m := range messages {
			switch m.Header.Type {
			case unix.SOCK_DIAG_BY_FAMILY:
				some = true
			case unix.NLMSG_DONE:
				return some, nil
			case unix.NLMSG_ERROR:
				return some, unix.EPROTONOSUPPORT
			}
		}
	}
}
