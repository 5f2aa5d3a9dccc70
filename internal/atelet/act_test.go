package atelet_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"time"
)

// act is an actor that counts its requests, so that one can see whether it still is the same process.
func act() {
	var count atomic.Int64
	http.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintf(w, "%s %d", os.Getenv("ATE_ACTOR_NAME"), count.Add(1))
	})
	http.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) {
		if _, err := os.Stat("/ate/hold"); err == nil { // which the test has put beside the authorities
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	http.HandleFunc("/env", func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, os.Getenv(r.FormValue("name"))) })
	http.HandleFunc("/file", func(w http.ResponseWriter, r *http.Request) {
		text, err := os.ReadFile(r.FormValue("name"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusNotFound)
			return
		}
		_, _ = w.Write(text)
	})
	http.HandleFunc("/dial", func(_ http.ResponseWriter, r *http.Request) {
		if c, err := net.DialTimeout("tcp", r.FormValue("to"), 5*time.Second); err == nil {
			_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
			_, _ = c.Read(make([]byte, 1))
			_ = c.Close()
		}
	})
	http.HandleFunc("/exit", func(http.ResponseWriter, *http.Request) { os.Exit(5) })
	fmt.Println("listening")
	fmt.Println(http.ListenAndServe(":80", nil))
	os.Exit(1)
}
