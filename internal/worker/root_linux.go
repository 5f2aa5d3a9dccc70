package worker

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// An actor sees a file system that is built for it out of an empty one, so that what is not named here is not there: the
// directories of runs and of secrets, other processes and devices, the tables of control groups.
const (
	newRoot    = "/run/netns" // covered in the actor's own view only; nothing that an actor may see is below it
	rootLimit  = "size=4m,nr_inodes=4096,mode=755"
	tempLimit  = "size=64m,nr_inodes=16384,mode=1777"
	shmLimit   = "size=64m,nr_inodes=1024,mode=1777"
	readOnly   = unix.MS_RDONLY
	restricted = unix.MS_NOSUID | unix.MS_NODEV
)

// systemDirs are the machine's programs and libraries; each is a directory, a link, or not there.
var systemDirs = []string{"usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32"}

// systemFiles are what programs need to find libraries, time zones and the roots of public certificates. Private keys are
// kept beside the latter, and are not among them.
var systemFiles = []string{
	"etc/ld.so.cache", "etc/localtime", "etc/alternatives", "etc/mime.types", "etc/ca-certificates",
	"etc/ssl/certs", "etc/ssl/cert.pem", "etc/ssl/openssl.cnf", "etc/pki/ca-trust", "etc/pki/tls/certs", "etc/pki/tls/cert.pem", "etc/pki/tls/openssl.cnf",
}

var devices = []string{"null", "zero", "full", "random", "urandom"}

// masked are files of proc that tell of the whole machine.
var masked = []string{"kcore", "keys", "key-users", "kmsg", "sched_debug", "sysrq-trigger", "timer_list", "kallsyms", "modules", "slabinfo"}

// unwritable are directories of proc that change the machine for those who may.
var unwritable = []string{"sys", "irq", "bus", "fs", "acpi"}

// buildRoot makes the file system and moves the process into it. The process must be alone in a new mount namespace.
func buildRoot(p *Program, hostname string) error {
	unix.Umask(0o022) // whatever the worker's is, actors must get at what is made for them
	if err := mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := mount("tmpfs", newRoot, "tmpfs", restricted, rootLimit); err != nil {
		return err
	}
	for _, step := range []func() error{
		bindSystem, mountDevices, mountProc, mountTemporary,
		func() error { return writeTables(p, hostname) },
		func() error { return bindMounts(p.Mounts) },
		enterRoot,
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func inRoot(path string) string { return filepath.Join(newRoot, path) }

func bindSystem() error {
	for _, dir := range systemDirs {
		info, err := os.Lstat("/" + dir)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			return err
		case info.Mode()&fs.ModeSymlink != 0:
			to, err := os.Readlink("/" + dir)
			if err != nil {
				return err
			}
			if err := os.Symlink(to, inRoot(dir)); err != nil {
				return err
			}
		default:
			if err := bind("/"+dir, dir, readOnly|restricted); err != nil {
				return err
			}
		}
	}
	for _, file := range systemFiles {
		if err := bind("/"+file, file, readOnly|restricted); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

func mountDevices() error {
	for _, d := range devices {
		if err := bind("/dev/"+d, "dev/"+d, unix.MS_NOSUID|unix.MS_NOEXEC); err != nil {
			return err
		}
	}
	for link, to := range map[string]string{"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"} {
		if err := os.Symlink(to, inRoot("dev/"+link)); err != nil {
			return err
		}
	}
	return mountNew("tmpfs", "dev/shm", restricted|unix.MS_NOEXEC, shmLimit)
}

func mountProc() error {
	if err := mountNew("proc", "proc", restricted|unix.MS_NOEXEC, ""); err != nil {
		return err
	}
	for _, file := range masked {
		if _, err := os.Stat(inRoot("proc/" + file)); err != nil {
			continue // not of this kernel
		}
		if err := mount("/dev/null", inRoot("proc/"+file), "", unix.MS_BIND, ""); err != nil {
			return err
		}
	}
	for _, dir := range unwritable {
		path := inRoot("proc/" + dir)
		if _, err := os.Stat(path); err != nil {
			continue
		}
		if err := errors.Join(mount(path, path, "", unix.MS_BIND, ""), remount(path, readOnly|restricted|unix.MS_NOEXEC)); err != nil {
			return err
		}
	}
	return nil
}

func mountTemporary() error {
	if err := mountNew("tmpfs", "tmp", restricted, tempLimit); err != nil {
		return err
	}
	return os.MkdirAll(inRoot("run"), 0o755)
}

// writeTables writes what names users and hosts. No names are resolved but those in the table of hosts.
func writeTables(p *Program, hostname string) error {
	var hosts strings.Builder
	fmt.Fprintf(&hosts, "127.0.0.1 localhost\n%s %s\n", actorAddress, hostname)
	for _, h := range p.Hosts {
		fmt.Fprintf(&hosts, "%s %s\n", h.Address, h.Name)
	}
	for name, text := range map[string]string{
		"hosts":         hosts.String(),
		"hostname":      hostname + "\n",
		"resolv.conf":   "# names are in /etc/hosts\n",
		"nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
		"passwd":        fmt.Sprintf("root:x:0:0::/:/bin/false\nactor:x:%d:%d::/tmp:/bin/sh\n", p.User, p.User),
		"group":         fmt.Sprintf("root:x:0:\nactor:x:%d:\n", p.User),
	} {
		if err := os.WriteFile(inRoot("etc/"+name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func bindMounts(all []Mount) error {
	for _, m := range all {
		flags := uintptr(restricted)
		if !m.Writable {
			flags |= readOnly
		}
		if err := bind(m.From, m.To, flags); err != nil {
			return err
		}
	}
	return nil
}

// enterRoot changes to the new file system and lets go of the old one.
func enterRoot() error {
	if err := os.Chdir(newRoot); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil { // both on top of each other, pivot_root(2)
		return os.NewSyscallError("pivot_root", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return os.NewSyscallError("umount", err)
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	return remount("/", readOnly|restricted)
}

// bind shows a file or directory, without what is mounted below it, in the new file system.
func bind(from, to string, flags uintptr) error {
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	target := inRoot(to)
	if info.IsDir() {
		err = os.MkdirAll(target, 0o755)
	} else if err = os.MkdirAll(filepath.Dir(target), 0o755); err == nil {
		err = place(target)
	}
	if err != nil {
		return err
	}
	return errors.Join(mount(from, target, "", unix.MS_BIND, ""), remount(target, flags))
}

// place makes a file to mount at. One that is there already is somebody's.
func place(target string) error {
	f, err := os.OpenFile(target, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o444)
	if err != nil {
		return err
	}
	return f.Close()
}

func mountNew(kind, to string, flags uintptr, options string) error {
	if err := os.MkdirAll(inRoot(to), 0o755); err != nil {
		return err
	}
	return mount(kind, inRoot(to), kind, flags, options)
}

func remount(path string, flags uintptr) error {
	return mount("", path, "", unix.MS_BIND|unix.MS_REMOUNT|flags, "")
}

func mount(from, to, kind string, flags uintptr, options string) error {
	if err := unix.Mount(from, to, kind, flags, options); err != nil {
		return fmt.Errorf("mounting %s at %s: %w", from+kind, to, err)
	}
	return nil
}
