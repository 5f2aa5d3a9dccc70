package gatewaytest

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// BIND is a name server that takes signed updates of one zone, on loopback.
type BIND struct {
	Address         string // host:port, UDP and TCP
	KeyName, Secret string // of TSIG, hmac-sha256
}

// NewBIND runs a name server for a zone in which every name is at 127.0.0.1.
func NewBIND(t testing.TB, zone string) *BIND {
	t.Helper()
	program := Peer(t, "named")
	dir := t.TempDir()
	b := &BIND{KeyName: "updates", Secret: "c2VjcmV0LW9mLW5vLXZhbHVlLWZvci10ZXN0cy1vbmx5"}
	port := FreePorts(t, 1)[0]
	b.Address = fmt.Sprintf("127.0.0.1:%d", port)
	files := map[string]string{
		"named.conf": fmt.Sprintf(`key %q { algorithm hmac-sha256; secret %q; };
options {
  directory %q;
  listen-on port %d { 127.0.0.1; };
  listen-on-v6 { none; };
  pid-file none;
  session-keyfile none;
  recursion no;
  dnssec-validation no;
};
controls { };
zone %q { type primary; file "zone"; allow-update { key %q; }; };
`, b.KeyName, b.Secret, dir, port, zone, b.KeyName),
		"zone": fmt.Sprintf("$TTL 1\n@ IN SOA ns.%[1]s. operator.%[1]s. 1 60 60 60 1\n@ IN NS ns.%[1]s.\n@ IN A 127.0.0.1\n* IN A 127.0.0.1\n", zone),
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	Run(t, program, "-g", "-4", "-n", "1", "-c", filepath.Join(dir, "named.conf")).Await(t, `(all zones loaded)`)
	return b
}
