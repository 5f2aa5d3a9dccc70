package worker

import "golang.org/x/sys/unix"

// auditArch is what a filter sees of this architecture, linux/audit.h.
const auditArch = unix.AUDIT_ARCH_AARCH64

// otherNumbers: this architecture has one set of calls.
const otherNumbers = 0xffffffff

// deniedHere are denied calls that only this architecture has.
var deniedHere = []uint32{unix.SYS_NFSSERVCTL, unix.SYS_LOOKUP_DCOOKIE}

// callSetrlimit is a call that architectures of later times do not have.
const callSetrlimit = unix.SYS_SETRLIMIT
