# Sluice. `make help` lists the targets; every target works from a fresh clone.
#
# The product is built with a fixed toolchain: older ones carry known faults in
# the standard library (CONNECT desynchronisation, HTTP/2 crashes). Go fetches
# it by itself on first use.
export GOTOOLCHAIN := go1.27.3
GO_MINIMUM  := go1.27.3

VERSION    ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
FUZZTIME   ?= 20s
SOAKTIME   ?= full
TESTFLAGS  ?=
BENCHFLAGS ?=
TESTFORMAT ?= standard-quiet

# The packages that take longest, so that none of them is left over at the end. Most tests wait for a network or a clock
# and not for the processor: several packages, and several tests of one, run at once whatever the number of processors.
# The architecture rules, which check has just looked after, are not asked again: they start nothing that could race.
LONGEST := ./internal/app ./internal/http1 ./internal/proxy ./internal/cert ./test/peers ./internal/worker ./internal/http2 ./test/bench
ATONCE  ?= -parallel 4

TOOL := go tool -modfile=tools/go.mod

.DEFAULT_GOAL := help
.PHONY: help build demo dev-demo test check bench fuzz soak fmt deps clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## build the server and the worker: bin/sluice, bin/sluice-worker
	CGO_ENABLED=0 go build -trimpath -ldflags '-s -w -X main.version=$(VERSION)' -o bin/sluice ./cmd/sluice
	CGO_ENABLED=0 go build -trimpath -ldflags '-s -w -X main.version=$(VERSION)' -o bin/sluice-worker ./cmd/sluice-worker

demo: build ## start a gateway with its bundled demo backend (Ctrl-C ends it)
	./bin/sluice demo

dev-demo: build ## as root on Linux: tour a whole actor network, assert each step, leave nothing
	./test/devdemo.sh

test: check ## run check, install what the tests need, then run every test
	./test/install.sh
	all=$$(go list ./... | grep -v /internal/archtest$$) && test -n "$$all" && $(TOOL) gotestsum --format $(TESTFORMAT) -- -race -shuffle=on -timeout 5m $(ATONCE) $(TESTFLAGS) $(LONGEST) $$all
	@echo '== what a request may cost: the race detector would count its own'
	go test -timeout 5m -run '^Test(Allocations|IdleCost)' ./internal/app ./internal/conn ./internal/http1 ./internal/http2 ./internal/proxy ./internal/route

check: ## format, vet, build for macOS, lint, architecture rules, tidy modules (CI runs exactly this)
	@./test/goversion.sh $(GO_MINIMUM)
	@echo '== format (gofumpt)'
	@bad=$$($(TOOL) gofumpt -l .) || exit 1; if [ -n "$$bad" ]; then echo 'not formatted, run make fmt:'; echo "$$bad"; exit 1; fi
	@echo '== go vet'
	@go vet ./...
	@echo '== builds for macOS'
	@CGO_ENABLED=0 GOOS=darwin go build ./cmd/...
	@echo '== staticcheck'
	@$(TOOL) staticcheck ./...
	@echo '== architecture rules and golden dependency lists'
	@go test -count=1 ./internal/archtest
	@echo '== modules tidy'
	@go mod tidy -diff
	@cd tools && go mod tidy -diff

bench: build ## compare with peers on this machine and print the table
	./test/bench/install.sh
	go build -o .cache/bench/harness ./test/bench
	./.cache/bench/harness $(BENCHFLAGS)

fuzz: ## run every fuzz target for FUZZTIME each (default 20s)
	./test/fuzz.sh $(FUZZTIME)

soak: ## run the long tests in full, or for SOAKTIME (such as 30m) each
	SLUICE_SOAK=$(SOAKTIME) go test -count=1 -timeout 0 -v -run '^TestSoak' ./...

fmt: ## format all Go code
	$(TOOL) gofumpt -w .

deps: ## rewrite the golden dependency lists (cmd/*/deps.txt) after a reviewed change
	SLUICE_UPDATE_DEPS=1 go test -count=1 -run '^TestGoldenDependencies$$' ./internal/archtest

clean: ## remove what the targets above made
	rm -rf bin .cache
