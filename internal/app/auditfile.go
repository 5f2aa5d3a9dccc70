package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/internal/egress"
)

// lastAudit is how long the end of an audit log waits for a write that hangs.
const lastAudit = 2 * time.Second

// auditFile is where an audit log is written, and who writes it. It lives as long as its gateway. Safe for concurrent use.
type auditFile struct {
	path  string // "" for an output of the process
	log   *slog.Logger
	stop  context.CancelFunc
	ended chan struct{} // closed when nothing is written any more

	mu     sync.Mutex // guards the rest, and is held over a write
	out    io.Writer  // an *os.File of ours, if there is a path
	closed bool
}

// openAudit begins an audit log.
func (a *App) openAudit(output string) (*egress.Audit, *auditFile, error) {
	f := &auditFile{log: a.log, ended: make(chan struct{})}
	switch output {
	case "stdout":
		f.out = a.opts.Stdout
	case "stderr":
		f.out = a.opts.Stderr
	default:
		file, err := openAuditFile(output)
		if err != nil {
			return nil, nil, err
		}
		f.path, f.out = output, file
	}
	audit := egress.NewAudit(f, a.log)
	ctx, stop := context.WithCancel(context.Background())
	f.stop = stop
	go func() {
		defer close(f.ended)
		audit.Run(ctx)
	}()
	return audit, f, nil
}

func openAuditFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("the audit log: %w", err)
	}
	return f, nil
}

// Write writes a line to the file there is now.
func (f *auditFile) Write(line []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.out.Write(line)
}

// reopen opens the file anew: a line goes into one of the two as a whole. After an error the one before stays.
func (f *auditFile) reopen() error {
	if f.path == "" {
		return nil
	}
	next, err := openAuditFile(f.path)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return next.Close()
	}
	before := f.out.(*os.File)
	f.out = next
	return before.Close()
}

// Close has what waits written and closes the file. A write that hangs, because nobody reads the process's output for instance, is
// left behind: neither a reload nor the end of the process waits for it for longer than 2 s.
func (f *auditFile) Close() error {
	f.stop()
	t := time.NewTimer(lastAudit)
	defer t.Stop()
	select {
	case <-f.ended:
	case <-t.C:
		f.log.Error("the audit log does not take its last lines", "waited", lastAudit)
		return nil // its file is still being written to
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	if f.path == "" {
		return nil
	}
	return f.out.(*os.File).Close()
}

// reopenAudits opens the files of all audit logs anew.
func (e *egresses) reopenAudits() error {
	var errs []error
	e.live.Range(func(g, _ any) bool {
		errs = append(errs, g.(*egressGateway).log.reopen())
		return true
	})
	return errors.Join(errs...)
}
