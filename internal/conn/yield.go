package conn

import "runtime"

func yield() { runtime.Gosched() }
