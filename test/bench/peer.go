package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"text/template"
	"time"
)

// site is where one proxy lives during a run: its directory, ports and what it may need to
// know. The configuration templates read its fields.
type site struct {
	Dir      string // the proxy's own directory, absolute
	Plain    int    // port for clear text
	TLS      int    // port for TLS
	Admin    int    // port for metrics, where there is one
	TCP      int    // port for connections passed on as they are
	UDP      int    // port for datagrams
	Upstream int    // port of the HTTP upstream
	EchoTCP  int    // ports of the upstream that sends everything back
	EchoUDP  int
	GRPC     int // port of the upstream of unary calls
	Cert     string
	Key      string
	CertPair string // certificate and key in one file
	Log      string // access log, where one is on
	Root     bool   // the bench runs as root
}

// peer is a proxy that the bench knows how to find, configure and start.
type peer struct {
	name    string
	note    string                      // how it is set up, for the report
	find    func(place) (string, error) // its binary
	version []string                    // arguments that print the version
	config  string                      // name of its configuration file
	text    string                      // template of the file
	args    func(s site, config string) []string
	lacks   []string // workloads that it does not offer
	scrape  string   // path of its metrics on the admin port, scraped each second; empty is never
}

// place is where a peer may be found.
type place struct {
	cache  string // the bench's cache directory
	sluice string // path of our binary
}

// peers lists all proxies in the order of a round. nginx is the measure, so it comes first.
var peers = []peer{nginxPeer, haproxyPeer, envoyPeer, referencePeer, caddyPeer, sluicePeer}

const (
	nameNginx     = "nginx"
	nameHAProxy   = "haproxy"
	nameEnvoy     = "envoy"
	nameReference = "reference"
	nameCaddy     = "caddy"
	nameSluice    = "sluice"
)

// onPath finds a binary by name, in the system's folders too.
func onPath(name string) func(place) (string, error) {
	return func(place) (string, error) {
		if p, err := exec.LookPath(name); err == nil {
			return p, nil
		}
		p := filepath.Join("/usr/sbin", name)
		if _, err := os.Stat(p); err != nil {
			return "", fmt.Errorf("%s is not installed", name)
		}
		return p, nil
	}
}

// inCache finds a binary by a pattern below the cache directory, else on the path.
func inCache(pattern, name string) func(place) (string, error) {
	return func(pl place) (string, error) {
		found, err := filepath.Glob(filepath.Join(pl.cache, pattern))
		if err != nil {
			return "", fmt.Errorf("looking for %s: %w", name, err)
		}
		if len(found) > 0 {
			return found[0], nil
		}
		return onPath(name)(pl)
	}
}

var versionNumber = regexp.MustCompile(`v?\d+\.\d+(\.\d+)?(-[0-9A-Za-z.+~]+)?`)

// versionOf asks a binary for its version; a binary that does not tell has none.
func versionOf(ctx context.Context, binary string, args []string) string {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	out, _ := exec.CommandContext(ctx, binary, args...).CombinedOutput() // wrk prints it and exits 1
	return versionIn(string(out), binary)
}

// versionIn finds the version in what a binary says of itself; its own path, which may hold
// numbers too, is not looked at. Without a number it is the first line.
func versionIn(text, binary string) string {
	first, _, _ := strings.Cut(strings.TrimSpace(strings.ReplaceAll(text, binary, "")), "\n")
	if v := versionNumber.FindString(first); v != "" {
		return v
	}
	return first
}

// render fills a configuration template.
func render(text string, s site) ([]byte, error) {
	t, err := template.New("config").Option("missingkey=error").Parse(text)
	if err != nil {
		return nil, fmt.Errorf("configuration template: %w", err)
	}
	var b bytes.Buffer
	if err := t.Execute(&b, s); err != nil {
		return nil, fmt.Errorf("configuration template: %w", err)
	}
	return b.Bytes(), nil
}

// command writes the peer's configuration and returns the command that runs it in the foreground.
func (p peer) command(binary string, s site) (*exec.Cmd, error) {
	if err := os.MkdirAll(s.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("directory of %s: %w", p.name, err)
	}
	text, err := render(p.text, s)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.name, err)
	}
	config := filepath.Join(s.Dir, p.config)
	if err := os.WriteFile(config, text, 0o644); err != nil {
		return nil, fmt.Errorf("configuration of %s: %w", p.name, err)
	}
	cmd := exec.Command(binary, p.args(s, config)...)
	cmd.Dir = s.Dir
	cmd.Env = append(os.Environ(), "XDG_DATA_HOME="+s.Dir, "XDG_CONFIG_HOME="+s.Dir)
	return cmd, nil
}
