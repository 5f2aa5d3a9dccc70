package route_test

import (
	"fmt"
	"testing"

	"github.com/sluice-proxy/sluice/internal/route"
)

// BenchmarkMatch shows that a lookup stays flat from 10 to 10 000 routes, for a hit on the first and the last route of
// the order and for a miss.
func BenchmarkMatch(b *testing.B) {
	for _, shape := range []struct{ name, rule, request, miss string }{
		{"hosts", "Host(`s%05d.example`) && PathPrefix(`/`)", "GET s%05d.example/v1/items", "GET nobody.example/v1/items"},
		{"prefixes_one_host", "Host(`api.example`) && PathPrefix(`/svc-%05d/`)", "GET api.example/svc-%05d/items", "GET api.example/svc-none/items"},
		{"prefixes_no_host", "PathPrefix(`/svc-%05d/`)", "GET api.example/svc-%05d/items", "GET api.example/svc-none/items"},
	} {
		for _, routes := range []int{10, 100, 1000, 10000} {
			var entries []route.Entry
			for i := range routes {
				entries = append(entries, router(b, fmt.Sprintf("r%05d", i), fmt.Sprintf(shape.rule, i), 0))
			}
			table := route.Build(entries, "web")
			for _, at := range []struct {
				name, request string
				want          int
			}{
				{"first", fmt.Sprintf(shape.request, 0), 0},
				{"last", fmt.Sprintf(shape.request, routes-1), routes - 1},
				{"miss", shape.miss, -1},
			} {
				in := request(at.request)
				b.Run(fmt.Sprintf("%s/%d/%s", shape.name, routes, at.name), func(b *testing.B) {
					b.ReportAllocs()
					for b.Loop() {
						if got := table.Match(&in); got != at.want {
							b.Fatalf("entry %d, want %d", got, at.want)
						}
					}
				})
			}
		}
	}
}

func BenchmarkNormalPath(b *testing.B) {
	for _, bc := range []struct{ name, path string }{{"unchanged", "/v1/chat/completions"}, {"changed", "/v1//chat/../chat/%63ompletions"}} {
		b.Run(bc.name, func(b *testing.B) {
			in, buf := []byte(bc.path), make([]byte, 0, 256)
			b.ReportAllocs()
			for b.Loop() {
				if _, _, err := route.NormalPath(buf, in, false); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkParse(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, errs := route.Parse("Host(`api.example`) && (PathPrefix(`/v1/`) || Path(`/health`)) && !Method(`TRACE`)"); len(errs) > 0 {
			b.Fatal(errs[0])
		}
	}
}

func BenchmarkBuild(b *testing.B) {
	var entries []route.Entry
	for i := range 10000 {
		entries = append(entries, router(b, fmt.Sprintf("r%05d", i), fmt.Sprintf("Host(`s%d.example`) && PathPrefix(`/svc-%05d/`)", i%500, i), 0))
	}
	b.ReportAllocs()
	for b.Loop() {
		route.Build(entries, "web")
	}
}
