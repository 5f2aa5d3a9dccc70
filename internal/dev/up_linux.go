package dev

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/sluice-proxy/sluice/internal/app"
	"github.com/sluice-proxy/sluice/internal/cert"
	"github.com/sluice-proxy/sluice/internal/terminal"
)

// Up makes a development network, says what to try, and serves until ctx ends or somebody calls Down. Then it drains, and
// removes everything.
func Up(ctx context.Context, o Options) (err error) {
	s, err := newSupervisor(o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	ctx, down := context.WithCancel(ctx)
	defer down()
	if err := s.up(ctx); err != nil {
		if ctx.Err() != nil {
			return nil // it was told to end
		}
		return err
	}
	stop, err := s.serve(down)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	fmt.Fprint(s.Out, s.greeting())
	for {
		select {
		case <-ctx.Done():
			fmt.Fprintln(s.Out, "\nDraining, and removing everything.")
			return nil
		case p := <-s.died:
			_, how := p.ended()
			fmt.Fprintf(s.Out, "\n%s (process %d) has ended by itself: %s. Its log is %s, and ends:\n%s\n", p.name, p.pid(), how, p.log, indent(terminal.Escape(p.tail(8))))
		}
	}
}

func indent(text string) string { return "  " + strings.ReplaceAll(text, "\n", "\n  ") }

// greeting says what runs and what to try.
func (s *supervisor) greeting() string {
	var b strings.Builder
	fmt.Fprintf(&b, "An actor network runs: run %s, %d namespaces, %d processes.\n\n", s.Run, len(s.hosts)+1, len(s.all()))
	for _, f := range s.forwards {
		fmt.Fprintf(&b, "  %-12s %-18s -> %s\n", f.name, f.addr(), f.to)
	}
	admin := s.component("admin")
	fmt.Fprintf(&b, `
Logs are in %[1]s; %[2]s has every decision about what actors reach.

Ask an actor, which wakes up for it:
  curl --cacert %[15]s \
    --cert %[16]s \
    -H 'ate-target-actor: %[4]s' https://localhost:%[5]s/

Have it reach out, as itself (add -d to the command above, and the path /run):
  -d '["curl","-sS","https://%[6]s/hello"]'
  -d '["curl","-sS","https://%[7]s/hello"]'     is refused, and %[8]s says why

Look at it, and change it:
  export %[14]sSLUICE_CONTROL=%[9]s SLUICE_CREDENTIALS=%[3]s
  sluice actor list; sluice worker list; sluice policy get %[4]s
  sluice audit tail %[2]s
  sluice actor logs %[4]s --log-dir %[17]s
  sluice actor suspend %[4]s
  %[11]s=$(cat %[12]s) sluice actor cut %[4]s --management %[13]s

Ctrl-C, or sluice dev down %[10]s, drains and removes everything. After kill -9: sluice dev clean %[10]s

`, s.logs(), s.auditLog(), admin, demoActor, portOf(s.forwarded(routerPart)), apiName, evilName, s.auditLog(), s.forwarded(ateapiPart), s.named(),
		managementToken, s.path("token"), s.management(), s.found(),
		filepath.Join(admin, app.ServiceMount, cert.TrustFile), filepath.Join(admin, app.IdentityMount, cert.CredentialFile), s.path("logs", "actors"))
	return b.String()
}

// found is what a shell has to be told to find this program by its name; "" nothing.
func (s *supervisor) found() string {
	if path, err := exec.LookPath("sluice"); err == nil && path == s.Self {
		return ""
	}
	return "PATH=" + filepath.Dir(s.Self) + ":$PATH "
}

func portOf(addr string) string { return addr[strings.LastIndexByte(addr, ':')+1:] }
