package telemetry_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// torn is where the process that TestAccessLogTornLine starts finds its file.
const torn = "SLUICE_TEST_TORN"

// A disk that is full takes a part of a line; once it has room again, the next line is one of its own, and only what did not get
// there is counted as lost.
func TestAccessLogTornLine(t *testing.T) {
	file := filepath.Join(t.TempDir(), "access.log")
	cmd := exec.Command(os.Args[0], "-test.run", "^TestAccessLogTornLineOfAProcess$", "-test.v") // what bounds files bounds those of the whole process
	cmd.Env = append(os.Environ(), torn+"="+file)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	_, said, _ := strings.Cut(string(out), "lost ")
	lost, err := strconv.Atoi(strings.Fields(said + " none")[0])
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	whole, broken := 0, 0
	for line := range strings.Lines(content(t, file)) {
		if json.Valid([]byte(line)) {
			whole++
		} else {
			broken++
		}
	}
	if broken != 1 || lost == 0 || whole+lost != 40 {
		t.Errorf("%d whole lines, %d broken ones, %d lost; want 1 broken and 40 in all", whole, broken, lost)
	}
}

// It is the process of the test above, in which no file gets longer than a few lines, until it does.
func TestAccessLogTornLineOfAProcess(t *testing.T) {
	file := os.Getenv(torn)
	if file == "" {
		t.Skip("is another test's")
	}
	signal.Ignore(syscall.SIGXFSZ)
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &l); err != nil {
		t.Fatal(err)
	}
	bound := func(bytes uint64) {
		if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: bytes, Max: l.Max}); err != nil {
			t.Fatal(err)
		}
	}
	process := new(syncBuffer)
	log := newLog(t, nil, process)
	log.Delay = 10 * time.Millisecond
	if err := log.Reconfigure(to(file, "json")); err != nil {
		t.Fatal(err)
	}
	bound(1000)
	write := func() {
		for range 20 {
			log.Log(finished())
		}
	}
	write() // before anything is written, which is all of it at once then
	stop := run(log)
	for !strings.Contains(process.String(), "cannot be written") {
		time.Sleep(time.Millisecond) // looking again, not hoping
	}
	bound(l.Cur)
	write()
	stop()
	t.Logf("lost %d", log.Dropped())
}
