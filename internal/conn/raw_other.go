//go:build !linux

package conn

import "time"

var longAgo = time.Unix(1, 0)
