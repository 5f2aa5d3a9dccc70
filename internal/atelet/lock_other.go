//go:build !unix || solaris || aix

package atelet

import "errors"

func lockDir(string) (func(), error) {
	return nil, errors.New("workers, and their agents, exist on Linux only")
}
