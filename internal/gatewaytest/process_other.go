//go:build !linux

package gatewaytest

import "syscall"

// endWithParent does nothing here.
var endWithParent *syscall.SysProcAttr
