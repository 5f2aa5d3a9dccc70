package telemetry

import (
	"bytes"
	"fmt"
	"os"
	"sync/atomic"
	"time"
)

// output is a file that entries are written to. Only the goroutine in AccessLog.Run uses it, but for retired.
type output struct {
	name    string // stdout, stderr or the path
	file    *os.File
	retired atomic.Bool // replaced: a write that hangs is not waited for any longer

	torn      bool // the last write ended inside an entry
	failing   bool
	abandoned bool // a write hangs for good, and owns the file
}

const filePermissions = 0o640

// openOutput opens the named output. Standard ones are duplicated: a write to the descriptors 1 and 2 themselves
// would end the process when nobody reads any more.
func openOutput(name string, stdout, stderr *os.File) (*output, error) {
	var file *os.File
	var err error
	switch name {
	case "stdout":
		file, err = duplicate(stdout)
	case "stderr":
		file, err = duplicate(stderr)
	default:
		file, err = os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_APPEND|openFlags, filePermissions)
	}
	if err != nil {
		return nil, fmt.Errorf("opening the access log output: %w", err)
	}
	return &output{name: name, file: file}, nil
}

// close closes the file. A standard one that could not be duplicated stays open: it is the process's.
func (o *output) close() error {
	if o.standard() && !duplicates {
		return nil
	}
	return o.file.Close()
}

func (o *output) standard() bool { return o.name == "stdout" || o.name == "stderr" }

// attempt is the result of one write.
type attempt struct {
	written int // entries
	torn    bool
	err     error
}

// write writes whole entries; what a full disk took of the last one before is closed with an empty line first. It
// touches nothing of o but the file, since it may outlast the interest in it.
func (o *output) write(buf []byte, torn bool) attempt {
	if torn {
		if _, err := o.file.Write([]byte{'\n'}); err != nil {
			return attempt{torn: true, err: err}
		}
	}
	n, err := o.file.Write(buf)
	return attempt{
		written: bytes.Count(buf[:n], []byte{'\n'}),
		torn:    n > 0 && buf[n-1] != '\n',
		err:     err,
	}
}

// interrupt ends a pending write, if the file can do that.
func (o *output) interrupt() bool { return o.file.SetWriteDeadline(time.Unix(1, 0)) == nil }
