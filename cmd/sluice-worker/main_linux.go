// Command sluice-worker hosts actors on one machine: it makes their networks, confines their programs, captures what they
// dial and carries it to the egress gateway, and takes the tunnels that lead to them. It is small on purpose, since it runs
// beside programs that nobody trusts: what it links is written down in deps.txt. It knows nothing of policies and of
// configuration files; it does what it is told on a Unix socket. It lives as long as the process.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/sluice-proxy/sluice/internal/fabric"
	"github.com/sluice-proxy/sluice/internal/worker"
)

// version is set when the binary is built for a release.
var version string

// The exit codes. They are documented and never change.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

const usage = `Usage:
  sluice-worker run --run ID --orders SOCKET [flags]
  sluice-worker left ID      list what exists of a run
  sluice-worker clean ID     remove it: processes, control groups, namespaces
  sluice-worker version

Flags of run: sluice-worker run --help
`

func main() {
	worker.Confine() // this process may have been started to become an actor
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	os.Exit(execute(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// errUsage is a mistake on the command line.
var errUsage = errors.New("the command line is at fault")

func execute(ctx context.Context, args []string, out, errs io.Writer) int {
	err := dispatch(ctx, args, out, errs)
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, flag.ErrHelp):
		return exitOK
	case errors.Is(err, errUsage):
		fmt.Fprintf(errs, "sluice-worker: %v\n\n%s", err, usage)
		return exitUsage
	}
	fmt.Fprintf(errs, "sluice-worker: %v\n", err)
	return exitFailed
}

func dispatch(ctx context.Context, args []string, out, errs io.Writer) error {
	if len(args) == 0 {
		return fmt.Errorf("%w: no command", errUsage)
	}
	switch command, rest := args[0], args[1:]; command {
	case "run":
		return runCommand(ctx, rest, errs)
	case "left", "clean":
		return tidyCommand(ctx, command, rest, out)
	case "version":
		_, err := fmt.Fprintln(out, "sluice-worker", cmp.Or(version, "(devel)"))
		return err
	case "help", "-h", "--help":
		_, err := io.WriteString(out, usage)
		return err
	default:
		return fmt.Errorf("%w: no command %q", errUsage, command)
	}
}

// tidyCommand lists or removes what exists of a run.
func tidyCommand(ctx context.Context, command string, args []string, out io.Writer) error {
	if len(args) != 1 {
		return fmt.Errorf("%w: %s takes the identifier of one run", errUsage, command)
	}
	run, err := fabric.NewRun(args[0])
	if err != nil {
		return fmt.Errorf("%w: %w", errUsage, err)
	}
	if err := needRoot(); err != nil {
		return err
	}
	left, err := run.Left()
	if err != nil {
		return err
	}
	if command == "clean" {
		if err := run.Clean(ctx); err != nil {
			return err
		}
	}
	for _, l := range left {
		if _, err := fmt.Fprintln(out, l); err != nil {
			return err
		}
	}
	return nil
}

func needRoot() error {
	if os.Geteuid() != 0 {
		return errors.New("network namespaces and control groups need root: run it as root")
	}
	return nil
}
