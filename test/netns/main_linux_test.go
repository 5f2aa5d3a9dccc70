package netns_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// The test binary is also the actor's program.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "as-actor" {
		act()
	}
	goleak.VerifyTestMain(m)
}

// act serves HTTP: /dial?to=… says hello to an address and answers with what it hears, everything else with who it is.
func act() {
	http.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, os.Getenv("ACTOR")) })
	http.HandleFunc("/dial", func(w http.ResponseWriter, r *http.Request) {
		c, err := net.DialTimeout("tcp", r.FormValue("to"), 5*time.Second)
		if err != nil {
			_, _ = io.WriteString(w, err.Error())
			return
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(5 * time.Second))
		_, _ = io.WriteString(c, "hello")
		b, err := io.ReadAll(c)
		_, _ = fmt.Fprint(w, string(b), err)
	})
	fmt.Println(http.ListenAndServe(":80", nil))
	os.Exit(1)
}
