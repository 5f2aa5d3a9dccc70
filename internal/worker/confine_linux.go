package worker

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// stageName is the first argument by which this program knows that it is to become an actor.
const stageName = "sluice-confine"

// Descriptors of a process that is to become an actor, besides its three standard ones.
const (
	orderFD  = 3 // what to become, then a byte to go on
	reportFD = 4 // a byte when ready, then what went wrong; closed by the change
)

// What the two tell each other.
const (
	ready = 'r' // everything is done but what the limits must precede
	goOn  = 'g'
)

// order says what a process is to become.
type order struct {
	Hostname string
	Program  Program
}

// Confine turns the calling process into an actor and never returns, if it was started for that; otherwise it does
// nothing. A program that activates actors calls it before anything else, since it starts itself to become them.
func Confine() {
	if len(os.Args) == 0 || os.Args[0] != stageName {
		return
	}
	runtime.LockOSThread() // privileges, filters and the change are of one thread
	report := os.NewFile(reportFD, "report")
	err := become(os.NewFile(orderFD, "order"), report)
	_, _ = io.WriteString(report, err.Error())
	os.Exit(1)
}

// become does all it can that needs privileges, gives them up for ever, and changes into the program. It returns on
// errors only.
func become(orders io.Reader, report io.Writer) error {
	decoder := json.NewDecoder(orders)
	var o order
	if err := decoder.Decode(&o); err != nil {
		return fmt.Errorf("reading the order: %w", err)
	}
	if err := unix.Sethostname([]byte(o.Hostname)); err != nil {
		return os.NewSyscallError("sethostname", err)
	}
	if err := buildRoot(&o.Program, o.Hostname); err != nil {
		return fmt.Errorf("building the file system: %w", err)
	}
	if err := closeRest(); err != nil {
		return err
	}
	if err := bound(); err != nil {
		return err
	}
	if err := renounce(int(o.Program.User)); err != nil {
		return err
	}
	if _, err := report.Write([]byte{ready}); err != nil {
		return err
	}
	// The limits are set now. Whoever started this process and died meanwhile does not answer.
	if _, err := io.ReadFull(io.MultiReader(decoder.Buffered(), orders), make([]byte, 1)); err != nil {
		return fmt.Errorf("waiting to go on: %w", err)
	}
	if err := installFilter(); err != nil {
		return err
	}
	p := o.Program
	return fmt.Errorf("executing %s: %w", p.Path, syscall.Exec(p.Path, append([]string{p.Path}, p.Args...), p.Env))
}

// closeRest has every descriptor but the standard ones closed by the change.
func closeRest() error {
	return os.NewSyscallError("close_range", unix.CloseRange(orderFD, ^uint(0), unix.CLOSE_RANGE_CLOEXEC))
}

// Bounds that no control group knows.
const (
	maxFiles    = 4096
	maxFileSize = 64 << 20 // bytes; longer writes fail
	// noCore keeps the kernel from dumping an actor's memory, also to a program, core(5): that runs as root, outside of all bounds and
	// as often as the actor likes. With 0 it would be started.
	noCore = 1
)

func bound() error {
	signal.Ignore(syscall.SIGXFSZ) // so that a long write fails, instead of ending the actor
	for _, l := range []struct {
		what  int
		limit uint64
	}{{unix.RLIMIT_CORE, noCore}, {unix.RLIMIT_NOFILE, maxFiles}, {unix.RLIMIT_FSIZE, maxFileSize}, {unix.RLIMIT_MEMLOCK, 0}} {
		// Through syscall, which must know of it: it restores an earlier limit of files otherwise.
		if err := syscall.Setrlimit(l.what, &syscall.Rlimit{Cur: l.limit, Max: l.limit}); err != nil {
			return os.NewSyscallError("setrlimit", err)
		}
	}
	return nil
}

// renounce gives up every privilege of the calling thread, and the possibility to get any again.
func renounce(id int) error {
	for c := 0; ; c++ {
		err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0)
		if errors.Is(err, unix.EINVAL) && c > unix.CAP_CHECKPOINT_RESTORE {
			break // the kernel's last one was before
		}
		if err != nil {
			return os.NewSyscallError("prctl PR_CAPBSET_DROP", err)
		}
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return os.NewSyscallError("prctl PR_CAP_AMBIENT", err)
	}
	if err := syscall.Setgroups(nil); err != nil {
		return os.NewSyscallError("setgroups", err)
	}
	if err := syscall.Setresgid(id, id, id); err != nil {
		return os.NewSyscallError("setresgid", err)
	}
	if err := syscall.Setresuid(id, id, id); err != nil {
		return os.NewSyscallError("setresuid", err)
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	if err := unix.Capset(&header, &none[0]); err != nil {
		return os.NewSyscallError("capset", err)
	}
	return os.NewSyscallError("prctl PR_SET_NO_NEW_PRIVS", unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
}
