package worker

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"slices"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// families are the socket families of an actor. Each of these is confined by its network namespace or its view of the
// file system. Others are not: AF_VSOCK, above all, reaches the machine's host from every namespace.
var families = []uint32{unix.AF_UNIX, unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK}

// denied are calls that need no privileges of their own, or get by the checks of others: they look into other processes,
// make or change namespaces and mounts, or reach much of the kernel. They fail with EPERM.
var denied = append([]uint32{
	unix.SYS_PTRACE, unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV, unix.SYS_PIDFD_GETFD, unix.SYS_KCMP,
	unix.SYS_SETNS, unix.SYS_UNSHARE, unix.SYS_LISTNS,
	unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_PIVOT_ROOT, unix.SYS_CHROOT, unix.SYS_OPEN_TREE, unix.SYS_OPEN_TREE_ATTR,
	unix.SYS_MOVE_MOUNT, unix.SYS_FSOPEN, unix.SYS_FSCONFIG, unix.SYS_FSMOUNT, unix.SYS_FSPICK, unix.SYS_MOUNT_SETATTR,
	unix.SYS_LISTMOUNT, unix.SYS_STATMOUNT, unix.SYS_NAME_TO_HANDLE_AT, unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_FANOTIFY_INIT,
	unix.SYS_KEYCTL, unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY,
	unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN, unix.SYS_USERFAULTFD,
	unix.SYS_KEXEC_LOAD, unix.SYS_KEXEC_FILE_LOAD, unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE, unix.SYS_DELETE_MODULE,
	unix.SYS_REBOOT, unix.SYS_SWAPON, unix.SYS_SWAPOFF, unix.SYS_ACCT, unix.SYS_QUOTACTL, unix.SYS_QUOTACTL_FD,
	unix.SYS_SETHOSTNAME, unix.SYS_SETDOMAINNAME, unix.SYS_SETTIMEOFDAY, unix.SYS_CLOCK_SETTIME, unix.SYS_CLOCK_ADJTIME,
	unix.SYS_ADJTIMEX, unix.SYS_SYSLOG, unix.SYS_VHANGUP,
}, deniedHere...)

// absent are calls whose arguments a filter cannot see: io_uring makes sockets of any family, and clone3 has its flags in
// memory. They fail with ENOSYS, on which programs fall back to the older calls.
var absent = []uint32{unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER, unix.SYS_CLONE3}

// newest is the last call that was looked at for the lists above. Later ones fail with ENOSYS.
const newest = unix.SYS_RSEQ_SLICE_YIELD

// newNamespaces are the flags of clone(2) that make namespaces.
const newNamespaces = unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWPID | unix.CLONE_NEWIPC |
	unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP

// punchHole is the mode of fallocate(2) that gives room back. Beside it an actor has the mode 0, which the bound of a file's size
// holds for; others have some file systems keep room beyond the end of a file, as much as the disk has.
const punchHole = unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE

// Places in struct seccomp_data, seccomp(2). Of an argument, the kernel takes the low half only where it is an int.
const (
	dataCall     = 0
	dataArch     = 4
	dataArgument = 16
)

// What a filter answers, linux/seccomp.h.
const (
	answerAllow = 0x7fff0000
	answerError = 0x00050000 // plus the error's number
	answerKill  = 0x80000000
)

func fail(e unix.Errno) bpf.Instruction { return bpf.RetConstant{Val: answerError | uint32(e)} }

// filter is the program that decides about each system call of an actor. It kills a process that speaks another
// architecture's numbers than those that it knows.
func filter() []bpf.Instruction {
	p := []bpf.Instruction{
		bpf.LoadAbsolute{Off: dataArch, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: auditArch, SkipTrue: 1},
		bpf.RetConstant{Val: answerKill},
		bpf.LoadAbsolute{Off: dataCall, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpLessThan, Val: otherNumbers, SkipTrue: 1},
		bpf.RetConstant{Val: answerKill},
		bpf.JumpIf{Cond: bpf.JumpLessOrEqual, Val: newest, SkipTrue: 1},
		fail(unix.ENOSYS),
	}
	for _, call := range absent {
		p = append(p, on(call, fail(unix.ENOSYS))...)
	}
	for _, call := range slices.Sorted(slices.Values(denied)) {
		p = append(p, on(call, fail(unix.EPERM))...)
	}
	for _, call := range []uint32{unix.SYS_SOCKET, unix.SYS_SOCKETPAIR} {
		p = append(p, on(call, ofFamily()...)...)
	}
	p = append(p, on(unix.SYS_CLONE,
		bpf.LoadAbsolute{Off: argument(0), Size: 4},
		bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: newNamespaces, SkipFalse: 1},
		fail(unix.EPERM),
		bpf.RetConstant{Val: answerAllow},
	)...)
	p = append(p, on(unix.SYS_FALLOCATE,
		bpf.LoadAbsolute{Off: argument(1), Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: 0, SkipTrue: 1},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: punchHole, SkipTrue: 1},
		bpf.RetConstant{Val: answerAllow},
		fail(unix.EOPNOTSUPP),
	)...)
	p = append(p, keepCore()...)
	return append(p, bpf.RetConstant{Val: answerAllow})
}

// keepCore has the limit of core dumps stay as it is: with 0 the machine's program would be started again. Programs that want none
// themselves are told that it is done.
func keepCore() []bpf.Instruction {
	done, allow := bpf.RetConstant{Val: answerError}, bpf.RetConstant{Val: answerAllow}
	p := on(callSetrlimit,
		bpf.LoadAbsolute{Off: argument(0), Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.RLIMIT_CORE, SkipTrue: 1},
		allow,
		done,
	)
	return append(p, on(unix.SYS_PRLIMIT64, // which only reads without a new limit
		bpf.LoadAbsolute{Off: argument(1), Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.RLIMIT_CORE, SkipTrue: 1},
		allow,
		bpf.LoadAbsolute{Off: argument(2), Size: 4},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: 0, SkipTrue: 3},
		bpf.LoadAbsolute{Off: argument(2) ^ 4, Size: 4}, // the other half
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: 0, SkipTrue: 1},
		allow,
		done,
	)...)
}

// on runs instructions, which must answer, for one call.
func on(call uint32, then ...bpf.Instruction) []bpf.Instruction {
	return append([]bpf.Instruction{bpf.JumpIf{Cond: bpf.JumpEqual, Val: call, SkipFalse: uint8(len(then))}}, then...)
}

// ofFamily answers for a call that makes sockets.
func ofFamily() []bpf.Instruction {
	p := []bpf.Instruction{bpf.LoadAbsolute{Off: argument(0), Size: 4}}
	for _, f := range families {
		p = append(p, bpf.JumpIf{Cond: bpf.JumpEqual, Val: f, SkipFalse: 1}, bpf.RetConstant{Val: answerAllow})
	}
	return append(p, fail(unix.EAFNOSUPPORT))
}

// argument is where the low half of an argument stands.
func argument(n uint32) uint32 {
	if binary.NativeEndian.Uint16([]byte{1, 0}) == 1 {
		return dataArgument + 8*n
	}
	return dataArgument + 8*n + 4
}

// installFilter puts the filter over the calling thread and what it executes, for ever.
func installFilter() error {
	if auditArch == 0 {
		return fmt.Errorf("no filter of system calls is known for %s", runtime.GOARCH)
	}
	raw, err := bpf.Assemble(filter())
	if err != nil {
		return fmt.Errorf("the filter of system calls: %w", err)
	}
	program := make([]unix.SockFilter, len(raw))
	for i, r := range raw {
		program[i] = unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K}
	}
	p := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	err = unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&p)), 0, 0)
	if err != nil {
		return fmt.Errorf("installing the filter of system calls: %w", err)
	}
	return nil
}
