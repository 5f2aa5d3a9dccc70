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

// farewell is what the actor's echo says when it has seen the end of what it gets.
const farewell = "and out"

// echo sends back what it gets, and a farewell behind it, on port 7.
func echo() {
	l, err := net.Listen("tcp", ":7")
	for err == nil {
		var c net.Conn
		if c, err = l.Accept(); err == nil {
			go func() {
				defer c.Close()
				if _, err := io.Copy(c, c); err == nil {
					_, _ = io.WriteString(c, farewell)
				}
			}()
		}
	}
}

// act serves an echo, and HTTP: /dial?to=… says hello to an address and answers with what it hears (with end=1, after it has ended
// its own side), everything else with who it is.
func act() {
	go echo()
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
		if r.FormValue("end") != "" {
			_ = c.(*net.TCPConn).CloseWrite()
		}
		b, err := io.ReadAll(c)
		_, _ = fmt.Fprint(w, string(b), err)
	})
	fmt.Println(http.ListenAndServe(":80", nil))
	os.Exit(1)
}
