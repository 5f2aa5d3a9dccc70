package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/internal/app"
	"github.com/sluice-proxy/sluice/internal/demo"
)

func (c *cli) demoCommand() *cobra.Command {
	listen := "127.0.0.1:8080"
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Start a gateway with two bundled model servers, to see it work",
		Long: `Starts a gateway in front of two small servers that speak the OpenAI API and make their answers up. It needs no
configuration, no model and no network, and prints what to try.`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			address, err := listenAddress(listen)
			if err != nil {
				return err
			}
			return c.demo(address)
		},
	}
	cmd.Flags().StringVarP(&listen, "listen", "l", listen, "address of the gateway; port 0 takes a free one")
	return cmd
}

func (c *cli) demo(address string) error {
	backends, err := startBackends("one", "two")
	if err != nil {
		return err
	}
	defer backends.stop()
	o := app.Options{Text: demoConfig(address, backends.urls)}
	err = c.serve(o, func(a *app.App) { fmt.Fprint(c.out, demoText(a.Bound()["web"])) })
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("%s is in use; choose another address with --listen, such as --listen 127.0.0.1:0 for any free port", address)
	}
	return err
}

// backends are the demo's model servers, each on a loopback port of its own.
type backends struct {
	urls    []string
	servers []*http.Server
	ended   []chan struct{}
}

func startBackends(names ...string) (*backends, error) {
	b := &backends{}
	for _, name := range names {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			b.stop()
			return nil, fmt.Errorf("starting demo backend %s: %w", name, err)
		}
		s := &http.Server{
			Handler:           demo.NewBackend(demo.Options{Name: name, FirstToken: 200 * time.Millisecond, Pace: 40 * time.Millisecond}),
			ReadHeaderTimeout: 10 * time.Second,
		}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = s.Serve(l) // ends by stop only
		}()
		b.urls = append(b.urls, "http://"+l.Addr().String())
		b.servers, b.ended = append(b.servers, s), append(b.ended, ended)
	}
	return b, nil
}

// stop ends the servers. Their answers have ended before, with the gateway.
func (b *backends) stop() {
	for i, s := range b.servers {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		if s.Shutdown(ctx) != nil {
			_ = s.Close()
		}
		cancel()
		<-b.ended[i]
	}
}

// demoConfig is the configuration of the demo: what one would write by hand.
func demoConfig(address string, urls []string) string {
	var servers strings.Builder
	for _, u := range urls {
		fmt.Fprintf(&servers, "    servers { url = %q }\n", u)
	}
	return fmt.Sprintf(`entrypoints "web" { address = %q }

routers "models" {
  rule    = "PathPrefix(`+"`/`"+`)"
  service = "models"
}

services "models" {
  load_balancer {
    strategy = "round-robin"
%s    health_check {
      path     = "/health"
      interval = "2s"
    }
  }
}

observability { access_log { output = "stderr" } }
`, address, &servers)
}

// demoText says what to try at a gateway that is bound to address.
func demoText(address string) string {
	if host, port, err := net.SplitHostPort(address); err == nil {
		if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
			address = net.JoinHostPort("127.0.0.1", port)
		}
	}
	at := "http://" + address
	return fmt.Sprintf(`
Sluice serves on %[1]s, in front of two demo backends.

A chat completion, token by token:
  curl -N %[1]s/v1/chat/completions -H 'Content-Type: application/json' \
    -d '{"model":"demo-small","stream":true,"messages":[{"role":"user","content":"hello river"}]}'

The models, and an embedding:
  curl %[1]s/v1/models
  curl %[1]s/v1/embeddings -H 'Content-Type: application/json' -d '{"model":"demo-small","input":"hello river"}'

Which backend answered (call it twice, they take turns):
  curl -si %[1]s/v1/models | grep -i %[2]s

Any OpenAI client works with the base URL %[1]s/v1 and any key.

Ctrl-C lets open requests finish and stops; a second Ctrl-C does not wait. kill -HUP %[3]d reloads without losing one.

`, at, strings.ToLower(demo.BackendHeader), os.Getpid())
}
