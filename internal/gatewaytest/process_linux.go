package gatewaytest

import "syscall"

// endWithParent ends a peer whose test binary was killed: no cleanup runs then.
var endWithParent = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
