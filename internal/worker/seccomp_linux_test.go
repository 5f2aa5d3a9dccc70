package worker_test

import (
	"encoding/binary"
	"testing"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/sluice-proxy/sluice/internal/worker"
)

// verdict is what the filter must answer, said in another way: by ranges and sets instead of jumps.
func verdict(arch, call uint32, args [6]uint64) uint32 {
	const allow, errno, kill = 0x7fff0000, 0x00050000, 0x80000000
	in := func(list []uint32) bool {
		for _, c := range list {
			if c == call {
				return true
			}
		}
		return false
	}
	switch family := uint32(args[0]); {
	case arch != worker.AuditArch, call >= worker.OtherNumbers:
		return kill
	case call > 471, in([]uint32{unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER, unix.SYS_CLONE3}):
		return errno | uint32(unix.ENOSYS)
	case in(worker.Denied):
		return errno | uint32(unix.EPERM)
	case in([]uint32{unix.SYS_SOCKET, unix.SYS_SOCKETPAIR}) && family != 1 && family != 2 && family != 10 && family != 16:
		return errno | uint32(unix.EAFNOSUPPORT)
	case call == unix.SYS_CLONE && args[0]&0x7e020000 != 0: // user, pid, net, ipc, uts, cgroup and mount namespaces
		return errno | uint32(unix.EPERM)
	case call == unix.SYS_FALLOCATE && uint32(args[1]) != 0 && uint32(args[1]) != 3: // in place, and giving back
		return errno | uint32(unix.EOPNOTSUPP)
	case call == unix.SYS_SETRLIMIT && uint32(args[0]) == 4, call == unix.SYS_PRLIMIT64 && uint32(args[1]) == 4 && args[2] != 0: // of core dumps
		return errno // 0: done, as far as it is told
	}
	return allow
}

// asked runs the filter as the kernel does. The virtual machine reads big-endian words, the kernel its own.
func asked(t interface{ Fatal(...any) }, vm *bpf.VM, arch, call uint32, args [6]uint64) uint32 {
	data := make([]byte, 64)
	binary.BigEndian.PutUint32(data[0:], call)
	binary.BigEndian.PutUint32(data[4:], arch)
	for i, a := range args {
		low, high := data[16+8*i:], data[20+8*i:]
		if binary.NativeEndian.Uint16([]byte{0, 1}) == 1 {
			low, high = high, low
		}
		binary.BigEndian.PutUint32(low, uint32(a))
		binary.BigEndian.PutUint32(high, uint32(a>>32))
	}
	n, err := vm.Run(data)
	if err != nil {
		t.Fatal(err)
	}
	return uint32(n)
}

func TestFilterAndItsTwin(t *testing.T) {
	if worker.AuditArch == 0 {
		t.Skip("SKIPPED: no filter for this architecture")
	}
	vm, err := bpf.NewVM(worker.Filter())
	if err != nil {
		t.Fatal(err)
	}
	check := func(t interface {
		Fatal(...any)
		Fatalf(string, ...any)
	}, arch, call uint32, args [6]uint64,
	) {
		if got, want := asked(t, vm, arch, call, args), verdict(arch, call, args); got != want {
			t.Fatalf("call %d(%#x…) of architecture %#x: %#x, want %#x", call, args[0], arch, got, want)
		}
	}
	for call := range uint32(600) { // every call, with every single bit of its first argument
		for bit := range 64 {
			check(t, worker.AuditArch, call, [6]uint64{1 << bit})
		}
		check(t, unix.AUDIT_ARCH_I386, call, [6]uint64{})
		check(t, worker.AuditArch, 0x40000000|call, [6]uint64{})
	}
	for family := range uint64(256) {
		for _, high := range []uint64{0, 1 << 32, 1 << 63} {
			check(t, worker.AuditArch, unix.SYS_SOCKET, [6]uint64{high | family, 1, 0})
			check(t, worker.AuditArch, unix.SYS_SOCKETPAIR, [6]uint64{high | family, 1, 0})
		}
	}
	for mode := range uint64(256) {
		check(t, worker.AuditArch, unix.SYS_FALLOCATE, [6]uint64{1, 1<<32 | mode})
		check(t, worker.AuditArch, unix.SYS_FALLOCATE, [6]uint64{1, mode})
	}
	for what := range uint64(17) {
		for _, limit := range []uint64{0, 1, 1 << 32, 1 << 63} {
			check(t, worker.AuditArch, unix.SYS_SETRLIMIT, [6]uint64{1<<32 | what, limit})
			check(t, worker.AuditArch, unix.SYS_PRLIMIT64, [6]uint64{limit, 1<<32 | what, limit})
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		arch := rapid.SampledFrom([]uint32{worker.AuditArch, unix.AUDIT_ARCH_I386, unix.AUDIT_ARCH_ARM, 0}).Draw(t, "arch")
		call := rapid.Uint32().Draw(t, "call")
		check(t, arch, call, [6]uint64{rapid.Uint64().Draw(t, "first"), rapid.Uint64().Draw(t, "second")})
	})
}
