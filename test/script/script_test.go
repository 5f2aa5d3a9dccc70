// Package script_test runs the scenarios in testdata against the real binary, as an operator would type them. Each is
// a text file: commands, what they must print, and the files that they work on.
package script_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// patience bounds everything that a scenario waits for.
const patience = 30 * time.Second

// binary is the directory with the sluice that is tested.
var binary string

func TestMain(m *testing.M) { os.Exit(build(m)) }

func build(m *testing.M) int {
	dir, err := os.MkdirTemp("", "sluice-script-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binary = dir
	cmd := exec.Command("go", "build", "-ldflags", "-X main.version=v0.0.0-test", "-o", filepath.Join(dir, "sluice"), "../../cmd/sluice")
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "building sluice:", err)
		return 1
	}
	return m.Run()
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		RequireExplicitExec: true,
		Deadline:            time.Now().Add(4 * patience), // a command that should end and serves instead
		UpdateScripts:       os.Getenv("SLUICE_UPDATE_SCRIPTS") != "",
		Setup: func(env *testscript.Env) error {
			env.Setenv("PATH", binary+string(os.PathListSeparator)+env.Getenv("PATH"))
			env.Values[processesKey] = map[string]*process{}
			env.Values[answersKey] = map[string]*answer{}
			return nil
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"start": start, "signal": sendSignal, "ended": ended, "await": await, "get": get, "refused": refused, "stream": stream, "whole": whole, "open": open, "gone": gone, "exits": exits,
		},
	})
}

// process is a sluice that runs in the background of a scenario.
type process struct {
	cmd    *exec.Cmd
	stderr string // file
	done   chan struct{}
}

type key int

const (
	processesKey key = iota
	answersKey
)

func named(ts *testscript.TestScript, name string) *process {
	p := ts.Value(processesKey).(map[string]*process)[name]
	if p == nil {
		ts.Fatalf("there is no process %s", name)
	}
	return p
}

// until calls check until it is true.
func until(ts *testscript.TestScript, what string, check func() bool) {
	for end := time.Now().Add(patience); !check(); {
		if time.Now().After(end) {
			ts.Fatalf("not within %s: %s", patience, what)
		}
		time.Sleep(10 * time.Millisecond) // looking again, not hoping: the end is check's to say
	}
}

var listening = regexp.MustCompile(`"msg":"listening","entrypoint":"([^"]+)","address":"([^"]+)"`)

// start NAME ARGS... runs sluice in the background and waits until it listens. NAME.out and NAME.err get what it
// prints; the variable NAME_ENTRYPOINT has the address of each entrypoint.
func start(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 1 {
		ts.Fatalf("usage: start NAME ARGS...")
	}
	name := args[0]
	out, err := os.Create(ts.MkAbs(name + ".out"))
	ts.Check(err)
	defer out.Close()
	p := &process{cmd: exec.Command(filepath.Join(binary, "sluice"), args[1:]...), stderr: ts.MkAbs(name + ".err"), done: make(chan struct{})}
	log, err := os.Create(p.stderr)
	ts.Check(err)
	defer log.Close()
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = ts.MkAbs("."), out, log
	p.cmd.Env = append(os.Environ(), "NO_COLOR=1")
	for _, name := range []string{"GOGC", "GOMEMLIMIT"} { // set by the scenario or not at all
		p.cmd.Env = append(p.cmd.Env, name+"="+ts.Getenv(name))
	}
	ts.Check(p.cmd.Start())
	go func() {
		defer close(p.done)
		_ = p.cmd.Wait() // its state is looked at by ended
	}()
	ts.Value(processesKey).(map[string]*process)[name] = p
	ts.Defer(func() {
		_ = p.cmd.Process.Kill()
		<-p.done
		if i := slices.Index(args, "--pid-file"); i >= 0 {
			killSuccessor(ts.MkAbs(args[i+1]))
		}
	})
	until(ts, name+" listens", func() bool {
		select {
		case <-p.done:
			ts.Fatalf("%s has ended: %s", name, ts.ReadFile(name+".err"))
		default:
		}
		found := listening.FindAllStringSubmatch(ts.ReadFile(name+".err"), -1)
		for _, m := range found {
			ts.Setenv(name+"_"+m[1], m[2])
		}
		return len(found) > 0
	})
}

// killSuccessor ends the process that a failed scenario has left behind by an upgrade.
func killSuccessor(pidFile string) {
	text, err := os.ReadFile(pidFile)
	if err != nil {
		return // it has ended as it should
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return
	}
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	if err == nil && strings.HasPrefix(exe, filepath.Join(binary, "sluice")) {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

var signals = map[string]syscall.Signal{
	"INT": syscall.SIGINT, "KILL": syscall.SIGKILL, "TERM": syscall.SIGTERM, "HUP": syscall.SIGHUP, "USR1": syscall.SIGUSR1, "USR2": syscall.SIGUSR2,
}

// signal NAME|FILE SIGNAL sends a signal to a process that start began, or to the one in a pid file.
func sendSignal(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 || signals[args[1]] == 0 {
		ts.Fatalf("usage: signal NAME|FILE INT|TERM|KILL|HUP|USR1|USR2")
	}
	if p := ts.Value(processesKey).(map[string]*process)[args[0]]; p != nil {
		ts.Check(p.cmd.Process.Signal(signals[args[1]]))
		return
	}
	pid, err := strconv.Atoi(strings.TrimSpace(ts.ReadFile(args[0])))
	ts.Check(err)
	ts.Check(syscall.Kill(pid, signals[args[1]]))
}

// ended NAME CODE waits for the end of a process and wants its exit code.
func ended(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: ended NAME CODE")
	}
	p := named(ts, args[0])
	select {
	case <-p.done:
	case <-time.After(patience):
		ts.Fatalf("%s has not ended within %s: %s", args[0], patience, ts.ReadFile(args[0]+".err"))
	}
	if code := fmt.Sprint(p.cmd.ProcessState.ExitCode()); code != args[1] {
		ts.Fatalf("%s ended with %s, want %s: %s", args[0], code, args[1], ts.ReadFile(args[0]+".err"))
	}
}

// await NAME|FILE PATTERN waits until what a process printed on standard error matches, or what a file holds.
func await(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: await NAME|FILE PATTERN")
	}
	file := args[0]
	if ts.Value(processesKey).(map[string]*process)[file] != nil {
		file += ".err"
	}
	pattern, err := regexp.Compile("(?m)" + args[1])
	ts.Check(err)
	until(ts, file+" has "+args[1], func() bool { return pattern.MatchString(ts.ReadFile(file)) })
}

// get FILE URL [STATUS] sends a request and writes head and body of the answer to a file.
func get(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) < 2 || len(args) > 3 {
		ts.Fatalf("usage: get FILE URL [STATUS]")
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	resp, err := client.Get(args[1])
	if neg {
		if err == nil {
			_ = resp.Body.Close()
			ts.Fatalf("%s answers %s", args[1], resp.Status)
		}
		return
	}
	ts.Check(err)
	defer resp.Body.Close()
	var b bytes.Buffer
	_ = resp.Header.Write(&b)
	b.WriteString("\n")
	_, err = io.Copy(&b, resp.Body)
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), b.Bytes(), 0o600))
	if want := append(args, "200")[2]; fmt.Sprint(resp.StatusCode) != want {
		ts.Fatalf("status %d, want %s: %s", resp.StatusCode, want, b.String())
	}
}

// refused ADDRESS waits until nobody can connect any more.
func refused(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: refused ADDRESS")
	}
	until(ts, args[0]+" refuses", func() bool {
		c, err := net.DialTimeout("tcp", args[0], patience)
		if err == nil {
			_ = c.Close()
		}
		return err != nil
	})
}

// answer is a streamed response that is being read.
type answer struct {
	text bytes.Buffer // valid after read
	err  error        // valid after read
	read chan struct{}
}

// stream NAME ADDRESS TOKENS begins a chat completion of that length, waits for its first byte and reads on in the
// background.
func stream(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: stream NAME ADDRESS TOKENS")
	}
	body := fmt.Sprintf(`{"model":"demo-small","stream":true,"max_tokens":%s,"messages":[{"role":"user","content":"at length"}]}`, args[2])
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Post("http://"+args[1]+"/v1/chat/completions", "application/json", strings.NewReader(body))
	ts.Check(err)
	a := &answer{read: make(chan struct{})}
	_, err = io.CopyN(&a.text, resp.Body, 1)
	ts.Check(err)
	go func() {
		defer close(a.read)
		_, a.err = io.Copy(&a.text, resp.Body)
	}()
	ts.Defer(func() {
		_ = resp.Body.Close()
		<-a.read
	})
	ts.Value(answersKey).(map[string]*answer)[args[0]] = a
}

// streamed is the answer of a name.
func streamed(ts *testscript.TestScript, name string) *answer {
	a := ts.Value(answersKey).(map[string]*answer)[name]
	if a == nil {
		ts.Fatalf("there is no stream %s", name)
	}
	return a
}

// open NAME wants a stream that has not ended yet.
func open(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: open NAME")
	}
	select {
	case <-streamed(ts, args[0]).read:
		ts.Fatalf("%s has ended", args[0])
	default:
	}
}

// whole NAME waits for the end of a stream and wants all of it; `! whole` wants it cut.
func whole(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 1 {
		ts.Fatalf("usage: whole NAME")
	}
	a := streamed(ts, args[0])
	select {
	case <-a.read:
	case <-time.After(patience):
		ts.Fatalf("%s has not ended within %s", args[0], patience)
	}
	if complete := a.err == nil && strings.HasSuffix(a.text.String(), "data: [DONE]\n\n"); complete == neg {
		ts.Fatalf("complete: %v, error %v: %s", complete, a.err, a.text.String())
	}
}

// gone FILE waits until a file does not exist any more.
func gone(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: gone FILE")
	}
	until(ts, args[0]+" is gone", func() bool {
		_, err := os.Lstat(ts.MkAbs(args[0]))
		return errors.Is(err, os.ErrNotExist)
	})
}

// exits CODE COMMAND ARGS... runs a command and wants its exit code; stdout and stderr are there for what follows.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE COMMAND ARGS...")
	}
	code := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			ts.Fatalf("%v", err)
		}
		code = exit.ExitCode()
	}
	if fmt.Sprint(code) != args[0] {
		ts.Fatalf("exit code %d, want %s", code, args[0])
	}
}

// A reader of standard output that leaves is no reason to end: the access log is dropped, and requests are served.
func TestStdoutWithoutReader(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	config := filepath.Join(dir, "gateway.acl")
	if err := os.WriteFile(config, []byte("entrypoints \"web\" { address = \"127.0.0.1:0\" }\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(binary, "sluice"), "-c", config, "--log-format", "json")
	cmd.Stdout = writer
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill() }()
	_, _ = reader.Close(), writer.Close()
	var address string
	log := bufio.NewScanner(stderr)
	for address == "" && log.Scan() {
		if m := listening.FindStringSubmatch(log.Text()); m != nil {
			address = m[2]
		}
	}
	rest := make(chan struct{})
	go func() {
		defer close(rest)
		_, _ = io.Copy(io.Discard, stderr)
	}()
	for range 3 {
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
		resp, err := client.Get("http://" + address + "/")
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-rest
	if err := cmd.Wait(); err != nil {
		t.Errorf("ended with %v", err)
	}
}
