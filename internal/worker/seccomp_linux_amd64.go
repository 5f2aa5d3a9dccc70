package worker

import "golang.org/x/sys/unix"

// auditArch is what a filter sees of this architecture, linux/audit.h.
const auditArch = unix.AUDIT_ARCH_X86_64

// otherNumbers begin a second set of calls, x32, with the same meanings.
const otherNumbers = 0x40000000

// deniedHere are denied calls that only this architecture has.
var deniedHere = []uint32{
	unix.SYS_IOPL, unix.SYS_IOPERM, unix.SYS_MODIFY_LDT, unix.SYS_USELIB, unix.SYS__SYSCTL, unix.SYS_CREATE_MODULE,
	unix.SYS_GET_KERNEL_SYMS, unix.SYS_QUERY_MODULE, unix.SYS_NFSSERVCTL, unix.SYS_LOOKUP_DCOOKIE,
}

// callSetrlimit is a call that architectures of later times do not have.
const callSetrlimit = unix.SYS_SETRLIMIT
