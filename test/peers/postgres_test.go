package peers_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/gatewaytest"
)

// asPostgres runs a program as the user that PostgreSQL insists on when the tests run as root.
func asPostgres(t *testing.T, dir string, program string, args ...string) []string {
	t.Helper()
	if os.Getuid() != 0 {
		return append([]string{program}, args...)
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		t.Fatal(err)
	}
	uid, _ := strconv.Atoi(u.Uid)
	gid, _ := strconv.Atoi(u.Gid)
	if err := os.Chown(dir, uid, gid); err != nil {
		t.Fatal(err)
	}
	return append([]string{gatewaytest.Peer(t, "setpriv"), "--reuid", u.Uid, "--regid", u.Gid, "--clear-groups", program}, args...)
}

// startPostgres runs a PostgreSQL server that speaks TLS to those who ask, and returns its address.
func startPostgres(t *testing.T) string {
	initdb, server := gatewaytest.Peer(t, "initdb"), gatewaytest.Peer(t, "postgres")
	dir, err := os.MkdirTemp("", "sluice-postgres") // its path must be open to another user
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	data := filepath.Join(dir, "data")
	made := asPostgres(t, dir, initdb, "-D", data, "-U", "postgres", "-A", "trust", "--no-sync", "--no-locale", "-E", "UTF8")
	if out, err := exec.Command(made[0], made[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("initdb: %v\n%s", err, out)
	}
	certFile, keyFile := pair(t, dir)
	port := freePort(t)
	for _, file := range []string{certFile, keyFile} {
		if err := os.Chown(file, owner(t, data), -1); err != nil {
			t.Fatal(err)
		}
	}
	argv := asPostgres(t, dir, server, "-D", data, "-p", strconv.Itoa(port), "-k", dir, "-c", "listen_addresses=127.0.0.1",
		"-c", "ssl=on", "-c", "ssl_cert_file="+certFile, "-c", "ssl_key_file="+keyFile, "-c", "fsync=off")
	run := gatewaytest.Run(t, argv[0], argv[1:]...)
	t.Cleanup(func() {
		run.Signal(t, syscall.SIGINT) // a fast shutdown, which gives its shared memory back
		_, _ = run.Ended(10 * time.Second)
	})
	run.Await(t, "ready to accept connections")
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
}

// pair writes the certificate of these tests.
func pair(t *testing.T, dir string) (certFile, keyFile string) {
	t.Helper()
	certPEM, keyPEM := certificate()
	certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	write(t, certFile, certPEM)
	write(t, keyFile, keyPEM)
	return certFile, keyFile
}

func owner(t *testing.T, path string) int {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return int(info.Sys().(*syscall.Stat_t).Uid)
}

// psql asks a server at an address by the name gateway.test.
func psql(t *testing.T, address, mode, query string) (string, error) {
	t.Helper()
	host, port, _ := net.SplitHostPort(address)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, gatewaytest.Peer(t, "psql"), "-X", "-A", "-t", "-c", query,
		fmt.Sprintf("host=gateway.test hostaddr=%s port=%s user=postgres dbname=postgres sslmode=%s connect_timeout=15", host, port, mode))
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

const usesTLS = "select ssl from pg_stat_ssl where pid = pg_backend_pid()"

// KF-L4-03: a client asks in clear text for TLS and is answered once; what the backend sees is the session.
func TestKF_L4_03(t *testing.T) {
	backend := startPostgres(t)
	certFile, keyFile := pair(t, t.TempDir())
	block := fmt.Sprintf("tls {\n cert_file = %q\n key_file = %q\n }", certFile, keyFile)
	for _, c := range []struct {
		name, entrypoint, rule, mode string
		behind                       string // whether the backend's session is in TLS
	}{
		{"terminated, by name", block, "HostSNI(`gateway.test`)", "terminate", "f"},
		{"terminated, for all", block, "HostSNI(`*`)", "terminate", "f"},
		{"passed through, by name", "", "HostSNI(`gateway.test`)", "passthrough", "t"},
		{"passed through, for all", "", "HostSNI(`*`)", "passthrough", "t"},
	} {
		t.Run(c.name, func(t *testing.T) {
			gw := run(t, fmt.Sprintf("entrypoints \"db\" {\n address = \"127.0.0.1:0\"\n protocol = \"tcp\"\n %s\n}\nrouters \"r\" {\n rule = %q\n service = \"s\"\n tls = %q\n}\nservices \"s\" {\n load_balancer {\n servers { url = \"tcp://%s\" }\n }\n}\n",
				c.entrypoint, c.rule, c.mode, backend))
			for _, mode := range []string{"require", "prefer"} {
				if got, err := psql(t, gw.Addr("db"), mode, usesTLS); err != nil || got != c.behind {
					t.Errorf("sslmode %s: the session behind is in TLS: %q, %v; want %q", mode, got, err, c.behind)
				}
			}
		})
	}
}
