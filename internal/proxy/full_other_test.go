//go:build !linux

package proxy_test

import "errors"

func fullListener() (addr string, free func(), err error) {
	return "", nil, errors.New("needs Linux: a listener whose queue is full")
}
