package archtest_test

// rooms is the import table. A room is a package path below the module; its
// value lists the rooms that its non-test files may import. Everything not
// listed is refused, and so is an internal package without an entry. Rooms that
// do not exist yet stand here already, so that their place is decided before
// their first line is written.
//
// Imports go down the floors, and sideways only along this table.
var rooms = map[string][]string{
	// Ground: knows no configuration.
	"internal/acl":       {},
	"internal/journal":   {},
	"internal/conn":      {},
	"internal/drain":     {},
	"internal/terminal":  {},
	"internal/route":     {},
	"internal/exchange":  {"internal/conn"},
	"internal/http1":     {"internal/exchange", "internal/conn", "internal/drain"},
	"internal/http2":     {"internal/exchange", "internal/conn", "internal/drain"},
	"internal/websocket": {"internal/exchange", "internal/conn"},
	// HTTP/3 fills the same exchange and runs the head validation of http2.
	"internal/http3": {"internal/exchange", "internal/conn", "internal/drain", "internal/http2"},

	// Contracts: messages on a wire, generated.
	"api/ateapi":       {},
	"api/atelet":       {"api/ateapi"},
	"api/atenetx":      {"api/ateapi"},
	"api/credprovider": {},

	// Written: what an operator wrote.
	"internal/config":   {"internal/acl", "internal/route"},
	"internal/provider": {"internal/config"},
	"internal/managed":  {"internal/config", "internal/journal"},

	// One source each; they speak the types of the seam above them.
	"internal/provider/file":       {"internal/config", "internal/provider"},
	"internal/provider/docker":     {"internal/config", "internal/provider"},
	"internal/provider/kubernetes": {"internal/config", "internal/provider"},
	"internal/provider/discovery":  {"internal/config", "internal/provider"},

	// Parts.
	"internal/telemetry":  {"internal/config", "internal/exchange", "internal/terminal"},
	"internal/mutual":     {},
	"internal/cert":       {"internal/config"},
	"internal/entrypoint": {"internal/config", "internal/conn", "internal/exchange", "internal/drain", "internal/http1", "internal/http2"},
	"internal/middleware": {"internal/config", "internal/conn", "internal/exchange"},
	"internal/firewall":   {"internal/config", "internal/exchange"},
	"internal/service":    {"internal/config", "internal/exchange", "internal/conn", "internal/http1", "internal/http2"},
	"internal/proxy":      {"internal/service", "internal/exchange", "internal/conn", "internal/http1", "internal/websocket"},
	"internal/tunnel":     {"internal/conn", "internal/drain", "internal/exchange", "internal/http1", "internal/http2"},
	"internal/usage":      {"internal/config", "internal/journal", "internal/exchange"},
	"internal/inference":  {"internal/config", "internal/exchange", "internal/service", "internal/proxy", "internal/usage"},
	"internal/actor":      {"internal/config", "internal/conn", "internal/exchange", "internal/mutual", "internal/service", "internal/tunnel"},
	"internal/egress":     {"internal/config", "internal/exchange", "internal/service", "internal/conn", "internal/cert", "internal/actor", "internal/mutual", "internal/terminal"},
	"internal/worker":     {"internal/conn", "internal/exchange", "internal/drain", "internal/tunnel", "internal/mutual", "internal/fabric"},
	"internal/control":    {"internal/config", "internal/actor", "internal/egress", "api/ateapi", "api/atelet", "api/atenetx", "api/credprovider"},
	"internal/atelet":     {"internal/actor", "internal/control"},
	"internal/store":      {"internal/config"},
	"internal/fabric":     {"internal/conn"},

	// Assembled.
	"internal/snapshot": {
		"internal/config", "internal/conn", "internal/exchange", "internal/route", "internal/middleware", "internal/firewall",
		"internal/service", "internal/proxy", "internal/telemetry", "internal/websocket", "internal/inference", "internal/usage", "internal/actor", "internal/egress",
	},

	// Faces.
	"internal/admin":    {"internal/config", "internal/exchange"},
	"internal/devplane": {"internal/config", "internal/cert", "internal/actor", "internal/egress", "internal/store"},
	"internal/envoy":    {"internal/config", "internal/actor", "internal/egress", "internal/cert"},
	"internal/demo":     {},

	// Top.
	"internal/app":      {anyRoom},
	"internal/dev":      {"internal/app", "internal/actor", "internal/cert", "internal/control", "internal/egress", "internal/fabric", "internal/mutual", "internal/terminal"},
	"gateway":           {"internal/app", "internal/config", "internal/exchange"},
	"cmd/sluice":        {"internal/app", "internal/config", "internal/acl", "internal/demo", "internal/actor", "internal/atelet", "internal/cert", "internal/control", "internal/dev", "internal/egress", "internal/mutual", "internal/terminal"},
	"cmd/sluice-worker": {"internal/worker", "internal/fabric", "internal/mutual", "internal/conn", "internal/drain"},

	// Test support; refused to everything above by onlyForTests.
	"internal/gatewaytest": {anyRoom},
	"internal/http1test":   {},
	"internal/storetest":   {"internal/store"},
	"internal/archtest":    {},
}

// deciders are the files whose functions say yes or no about an actor. They take and give values, so that our own data
// plane, the adapter for another proxy, explain and tests ask the same code: beside the standard library they import
// only the rooms listed, whatever else their room may import.
var deciders = map[string][]string{
	"internal/actor/authorize.go": {},
	"internal/actor/ref.go":       {},
	"internal/actor/template.go":  {},
	"internal/actor/identity.go":  {},
	"internal/actor/target.go":    {},
	"internal/devplane/state.go":  {"internal/actor"},
	"internal/egress/admit.go":    {"internal/actor", "internal/mutual"},
	"internal/egress/explain.go":  {},
	"internal/egress/host.go":     {},
	"internal/egress/judge.go":    {},
	"internal/egress/policy.go":   {"internal/actor"},
	"internal/egress/rules.go":    {},
	"internal/egress/validate.go": {"internal/actor"},
	"internal/egress/verdict.go":  {},
}

// anyRoom in a value of rooms allows every room.
const anyRoom = "*"

// onlyForTests lists rooms that no shipped package may import.
var onlyForTests = []string{"internal/gatewaytest", "internal/http1test", "internal/storetest", "internal/archtest"}

// testTrees are folders whose packages drive the product from outside: they may
// import any room and are not part of the table.
var testTrees = []string{"test/"}

// wall keeps an import path, and everything below it, to some rooms. Test files
// are free: they use other people's implementations as oracles.
type wall struct {
	path    string   // import path; it and everything below it
	rooms   []string // rooms that may import it; empty means nobody
	because string
}

var walls = []wall{
	{"golang.org/x/net/http2", []string{"internal/http2"}, "one HTTP/2 codec, behind one loop"},
	{"golang.org/x/net/http/httpguts", []string{"internal/exchange", "internal/http1", "internal/http2"}, "head rules live in the engine"},
	{"github.com/pires/go-proxyproto", []string{"internal/conn"}, "what a connection says of itself is read where connections are known"},
	{"github.com/prometheus", []string{"internal/telemetry"}, "parts keep plain counters that telemetry reads"},
	{"go.opentelemetry.io", []string{"internal/telemetry"}, "spans are made from finished exchanges"},
	{"github.com/fsnotify/fsnotify", []string{"internal/provider/file"}, "one watcher"},
	{"github.com/spf13", []string{"cmd/sluice", "cmd/sluice-worker"}, "flags end at main"},
	{"github.com/coreos/go-systemd", []string{"internal/app"}, "readiness and socket activation are wiring"},
	{"github.com/coder/websocket", []string{"internal/websocket"}, "one end of WebSocket"},
	{"github.com/quic-go", []string{"internal/http3"}, "QUIC has one importer"},
	{"github.com/caddyserver", []string{"internal/cert"}, "ACME is a source of certificates"},
	{"github.com/mholt/acmez", []string{"internal/cert"}, "ACME is a source of certificates"},
	{"github.com/cloudflare", []string{"internal/cert"}, "a DNS service that proves names to an ACME authority"},
	{"github.com/aws", []string{"internal/cert"}, "a DNS service that proves names to an ACME authority"},
	{"github.com/miekg/dns", []string{"internal/cert"}, "DNS updates prove names to an ACME authority"},
	{"go.uber.org/zap", []string{"internal/cert"}, "certmagic speaks zap; it is turned into slog there"},
	{"github.com/envoyproxy", []string{"internal/envoy"}, "only one room may name an Envoy type"},
	{"github.com/google/nftables", []string{"internal/worker"}, "the kernel's tables have one owner"},
	{"github.com/vishvananda", []string{"internal/fabric"}, "links and namespaces have one home"},
	{"github.com/moby", []string{"internal/provider/docker"}, "a provider translates its own source"},
	{"k8s.io", []string{"internal/provider/kubernetes"}, "a provider translates its own source"},
	{"google.golang.org/grpc", []string{"api/ateapi", "api/atelet", "api/atenetx", "api/credprovider", "internal/control", "internal/envoy", "internal/telemetry"}, "domain types never carry a transport's"},
	{"google.golang.org/protobuf", []string{"api/ateapi", "api/atelet", "api/atenetx", "api/credprovider", "internal/control", "internal/envoy"}, "domain types never carry a transport's"},
	{"modernc.org/sqlite", []string{"internal/store"}, "one storage room"},
	{"github.com/jackc/pgx", []string{"internal/store"}, "one storage room"},
	{"github.com/redis", []string{"internal/middleware"}, "shared limits"},

	{"io/ioutil", nil, "gone from the standard library's own code"},
	{"math/rand", nil, "use math/rand/v2, or crypto/rand for anything a peer may guess at"},
	{"log", nil, "log with a *slog.Logger given to the constructor"},
	{"plugin", nil, "the list of built-ins is explicit"},
}

// wallExceptions are import paths below a wall that are not meant by it.
var wallExceptions = []string{"log/slog", "math/rand/v2"}

// engineRooms forward traffic. Of net/http they may use the names and texts of
// statuses: two HTTP engines would make two sets of security decisions.
var engineRooms = []string{
	"internal/acl", "internal/journal", "internal/conn", "internal/drain", "internal/route", "internal/exchange",
	"internal/http1", "internal/http2", "internal/http3", "internal/config", "internal/entrypoint", "internal/proxy",
}

// bannedNames are package names that say nothing about what is inside.
var bannedNames = []string{
	"util", "utils", "common", "helper", "helpers", "types", "core", "manager", "misc", "base", "lib", "shared", "tools",
}

const (
	fileBudget     = 500 // lines of one file
	functionBudget = 100 // lines of one function outside tests
)

// longFunctions may exceed functionBudget: each is one straight descent that
// splitting would make harder to follow. Keys are room.Receiver.Function.
var longFunctions = map[string]string{
	// "internal/app.Start": "wires the process in dependency order, top to bottom",
}

// goldenBinaries have their linked rooms and modules written down in deps.txt
// beside their main package.
var goldenBinaries = []string{"cmd/sluice", "cmd/sluice-worker"}

// neverLinked may not appear in any shipped binary.
var neverLinked = []string{
	"testing", "net/http/httptest", "net/http/pprof", // expvar comes with the metrics client; nothing serves the mux that it registers at
	"go.uber.org/goleak", "pgregory.net/rapid", "github.com/google/go-cmp", "github.com/rogpeppe/go-internal",
}
