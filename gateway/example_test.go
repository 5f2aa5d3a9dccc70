package gateway_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/sluice-proxy/sluice/gateway"
)

func ExampleNew() {
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s, tier %s", r.URL.Path, r.Header.Get("X-Tier"))
	}))
	defer backend.Close()

	g, err := gateway.New(gateway.Options{Config: fmt.Sprintf(`
		entrypoints "web" { address = "127.0.0.1:0" }

		routers "api" {
		  rule        = "PathPrefix(`+"`/api`"+`)"
		  service     = "api"
		  middlewares = ["tier"]
		}

		middlewares "tier" {
		  type            = "headers"
		  request_headers = { "X-Tier" = "gold" }
		}

		services "api" {
		  load_balancer { servers { url = %q } }
		}

		observability { access_log_enabled = false }
	`, backend.URL)})
	if err != nil {
		fmt.Println(err) // everything that is wrong with the configuration, with its places
		return
	}
	if err := g.Start(context.Background()); err != nil {
		fmt.Println(err)
		return
	}
	resp, err := http.Get("http://" + g.Addr("web") + "/api/hello")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	fmt.Println(resp.StatusCode, string(body), err)

	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	fmt.Println(g.Shutdown(ctx))
	// Output:
	// 200 /api/hello, tier gold <nil>
	// <nil>
}

func ExampleNew_faults() {
	_, err := gateway.New(gateway.Options{Config: `
entrypoints "web" { adress = "127.0.0.1:8080" }
`})
	fmt.Println(err)
	// Output:
	// configuration:2:13: address in entrypoints "web" is required
	// configuration:2:21: unknown key adress in entrypoints "web"
}
