package config_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-proxy/sluice/internal/acl"
	"github.com/sluice-proxy/sluice/internal/config"
)

func src(file, text string) config.Source { return config.Source{File: file, Text: []byte(text)} }

// Fragments are one document: names are shared, and every finding names the file it is in.
func TestFragmentsAreOneDocument(t *testing.T) {
	main := "entrypoints \"web\" { address = \":8080\" }\nshutdown_timeout_secs = 7\n"
	one := "routers \"r\" { rule = \"PathPrefix(`/`)\"; service = \"s\" }\n"
	two := "services \"s\" { load_balancer { servers { url = \"http://127.0.0.1:1\" } } }\n"
	cfg, diags := config.Load([]config.Source{src("main.acl", main), src("d/1.acl", one), src("d/2.acl", two)})
	if len(diags) != 0 || cfg == nil {
		t.Fatalf("%v", diags)
	}
	if cfg.Routers["r"].Service != "s" || cfg.Services["s"] == nil || cfg.ShutdownTimeout.Seconds() != 7 {
		t.Errorf("not merged: %+v", cfg)
	}
	if got := cfg.Services["s"].Pos.File; got != "d/2.acl" {
		t.Errorf("the service is in %s", got)
	}
	sum := sha256.Sum256([]byte(main + one + two))
	if want := hex.EncodeToString(sum[:]); cfg.Digest != want {
		t.Errorf("digest %s, want %s", cfg.Digest, want)
	}
}

func TestDuplicatesAcrossFragments(t *testing.T) {
	_, diags := config.Load([]config.Source{
		src("a.acl", "entrypoints \"web\" { address = \":1\" }\nmode { kind = \"standalone\" }\nshutdown_delay_secs = 1\n"),
		src("b.acl", "\nentrypoint \"web\" { address = \":2\" }\nmode { kind = \"standalone\" }\nshutdown_delay_secs = 1\n"),
	})
	want := `b.acl:2:12: error config.duplicate: entrypoints "web" is already defined at a.acl:1:13
b.acl:3:1: error config.duplicate: mode is already set at a.acl:2:1
b.acl:4:1: error config.duplicate: shutdown_delay_secs is already set at a.acl:3:1
`
	if diff := cmp.Diff(want, report(diags)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// All stages report in one run, and a broken file does not make its neighbours look wrong.
func TestAllErrorsInOneRun(t *testing.T) {
	_, diags := config.Load([]config.Source{
		src("a.acl", "entrypoints \"web\" { address = \"nope\"; colour = 1 }\nrouters \"r\" { rule = \"Host(\"; service = \"s\" }\n"),
		src("b.acl", "services \"s\" { load_balancer { strategy = least-connections } }\n"),
	})
	codes := map[string]int{}
	for _, d := range diags {
		codes[d.Code]++
	}
	for _, code := range []string{config.CodeAddress, config.CodeUnknownKey, config.CodeRule, acl.CodeUnexpectedToken} {
		if codes[code] == 0 {
			t.Errorf("no %s in\n%s", code, report(diags))
		}
	}
	if codes[config.CodeReference]+codes[config.CodeMissing] > 0 {
		t.Errorf("complains of what was not read:\n%s", report(diags))
	}
}

func TestLoadIsRepeatable(t *testing.T) {
	text := readFile(t, "../../examples/full.acl")
	var first string
	for range 5 {
		l := loader()
		l.ReadFile = func(string) ([]byte, error) { return []byte("token"), nil }
		cfg, diags := l.Load([]config.Source{{File: "full.acl", Text: text}})
		if cfg == nil {
			t.Fatal(diags)
		}
		out, err := config.JSON(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if first == "" {
			first = string(out)
		}
		if string(out) != first {
			t.Fatal("two loads of one text print differently")
		}
	}
}

// Many warnings are counted, not listed, and never refuse a configuration.
func TestManyWarningsDoNotRefuse(t *testing.T) {
	var b strings.Builder
	for i := range 300 {
		fmt.Fprintf(&b, "middlewares \"m%d\" { type = \"headers\" }\n", i)
	}
	cfg, diags := config.Load([]config.Source{src("w.acl", b.String())})
	if cfg == nil || len(diags) != 21 {
		t.Fatalf("cfg %v, %d findings", cfg != nil, len(diags))
	}
	var more bool
	for _, d := range diags {
		more = more || d.Code == config.WarnMore && strings.Contains(d.Message, "280")
	}
	if !more {
		t.Errorf("the rest is not counted:\n%s", report(diags))
	}
}

func TestManyErrorsAreBounded(t *testing.T) {
	_, diags := config.Load([]config.Source{src("e.acl", strings.Repeat("middlewares { x = 1 }\n", 500))})
	if len(diags) != acl.MaxDiagnostics+1 || !diags.Truncated() {
		t.Errorf("%d findings, truncated: %v", len(diags), diags.Truncated())
	}
}

// Middlewares of the embedding program may be named, and not defined.
func TestRegisteredMiddlewares(t *testing.T) {
	text := "entrypoints \"e\" { address = \":1\" }\nservices \"s\" { load_balancer { servers { url = \"http://a\" } } }\n" +
		"routers \"r\" { rule = \"Path(`/`)\"; service = \"s\"; middlewares = [\"own\"] }\n"
	if cfg, _ := config.Load([]config.Source{src("m.acl", text)}); cfg != nil {
		t.Error("a middleware that does not exist was accepted")
	}
	l := config.Loader{Registered: []string{"own"}}
	if cfg, diags := l.Load([]config.Source{src("m.acl", text)}); cfg == nil {
		t.Errorf("%s", report(diags))
	}
	_, diags := l.Load([]config.Source{src("m.acl", text+"middlewares \"own\" { type = \"rate-limit\"; rate = 1 }\n")})
	if len(diags) != 1 || diags[0].Code != config.CodeConflict {
		t.Errorf("%s", report(diags))
	}
}

// Findings about a rule point at the very character, behind escapes and beside Unicode.
func TestRuleErrorsPointIntoTheString(t *testing.T) {
	text := "# ü\nentrypoints \"web\" { address = \":1\" }\nservices \"s\" { load_balancer { servers { url = \"http://a\" } } }\n" +
		`routers "ü" { service = "s" rule = "Query(\"ü\") && Pth(` + "`/`" + `)" }` + "\n"
	_, diags := config.Load([]config.Source{src("r.acl", text)})
	if len(diags) != 1 {
		t.Fatalf("%s", report(diags))
	}
	d := diags[0]
	if got := text[d.Span.Start.Offset:d.Span.End.Offset]; !strings.HasPrefix(got, "Pth") {
		t.Errorf("points at %q", got)
	}
	if d.Span.Start.Line != 4 || d.Span.Start.Col != 53 {
		t.Errorf("at %s", d.Span)
	}
}

func TestRealEnvironmentAndFiles(t *testing.T) {
	dir := t.TempDir()
	secret := filepath.Join(dir, "s")
	if err := os.WriteFile(secret, []byte("v\n\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SLUICE_TEST_VALUE", "from-env")
	load := func(value string) (*config.Config, acl.Diagnostics) {
		return config.Load([]config.Source{src("f.acl", `middlewares "m" { type = "headers"; request_headers = { "X-A" = `+value+` } }`)})
	}
	cfg, diags := load(fmt.Sprintf("file(%q)", secret))
	if cfg != nil || !diags.HasErrors() {
		t.Error("a value with a line end in it was accepted")
	}
	if err := os.WriteFile(secret, []byte("v\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if cfg, diags = load(fmt.Sprintf("file(%q)", secret)); cfg == nil || cfg.Middlewares["m"].Headers.Request[0].Value != "v" {
		t.Errorf("file(...): %v", diags)
	}
	if cfg, diags = load(`env("SLUICE_TEST_VALUE")`); cfg == nil || cfg.Middlewares["m"].Headers.Request[0].Value != "from-env" {
		t.Errorf("env(...): %v", diags)
	}
	for _, path := range []string{dir, "/dev/zero", filepath.Join(dir, "none")} {
		if cfg, diags = load(fmt.Sprintf("file(%q)", path)); cfg != nil || diags[0].Code != config.CodeEnv {
			t.Errorf("file(%q) was read", path)
		}
	}
	big := filepath.Join(dir, "big")
	if err := os.WriteFile(big, make([]byte, 64<<10+1), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, diags = load(fmt.Sprintf("file(%q)", big)); len(diags) != 1 || !strings.Contains(diags[0].Message, "too large") {
		t.Errorf("big file: %v", diags)
	}
}

func readFile(t testing.TB, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestExamplesLoad(t *testing.T) {
	names, err := filepath.Glob("../../examples/*.acl")
	if err != nil || len(names) < 4 {
		t.Fatalf("%v, %v", names, err)
	}
	l := config.Loader{
		LookupEnv: func(string) (string, bool) { return "/pki/file.pem", true },
		ReadFile:  func(string) ([]byte, error) { return []byte("token\n"), nil },
	}
	for _, name := range names {
		t.Run(filepath.Base(name), func(t *testing.T) {
			cfg, diags := l.Load([]config.Source{{File: name, Text: readFile(t, name)}})
			if cfg == nil || len(diags) > 0 {
				t.Errorf("%s", report(diags))
			}
		})
	}
}

// The two texts that newcomers copy from elsewhere are the examples here.
func TestSeedExampleIsVerbatim(t *testing.T) {
	golden := string(readFile(t, "testdata/seed/basic.txt"))
	in, _, _ := strings.Cut(golden, "----\n")
	if diff := cmp.Diff(in, string(readFile(t, "../../examples/seed-basic.acl"))); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// FuzzLoad looks for panics, unbounded findings, a configuration beside an error, and texts that print differently
// each time.
func FuzzLoad(f *testing.F) {
	names, err := filepath.Glob("testdata/*/*.txt")
	if err != nil {
		f.Fatal(err)
	}
	for _, name := range names {
		in, _, _ := strings.Cut(string(readFile(f, name)), "----\n")
		f.Add([]byte(in))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		cfg, diags := loader().Load([]config.Source{{File: "fuzz.acl", Text: text}})
		if (cfg == nil) != diags.HasErrors() || len(diags) > acl.MaxDiagnostics+1 {
			t.Fatalf("cfg %v with %d findings", cfg != nil, len(diags))
		}
		loose, _ := loader().Decode([]config.Source{{File: "fuzz.acl", Text: text}}, nil)
		out, err := config.JSON(loose)
		if err != nil {
			t.Fatal(err)
		}
		if again, _ := config.JSON(loose); string(again) != string(out) {
			t.Fatal("prints differently")
		}
		for _, v := range config.Views {
			config.Text(loose, v)
		}
		config.ValidText(loose, "x")
	})
}

// bigText is a configuration near the limits of the language: every check across blocks must stay about linear.
func bigText(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "entrypoints \"e%d\" { address = \":%d\" }\n", i, i%60000+1)
		fmt.Fprintf(&b, "routers \"h%d\" { rule = \"Host(`h%d`)\"; service = \"s%d\" }\n", i, i, i)
		fmt.Fprintf(&b, "routers \"p%d\" { rule = \"PathPrefix(`/p%d`)\"; service = \"s%d\" }\n", i, i, i)
		fmt.Fprintf(&b, "services \"s%d\" { load_balancer { servers { url = \"http://b%d\" } } }\n", i, i)
	}
	return b.String()
}

func TestBigConfigurationLoads(t *testing.T) {
	cfg, diags := config.Load([]config.Source{src("big.acl", bigText(2400))})
	if cfg == nil || len(cfg.Routers) != 4800 {
		t.Fatal(diags)
	}
}

func BenchmarkLoad(b *testing.B) {
	text := bigText(2400)
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		if cfg, diags := config.Load([]config.Source{src("big.acl", text)}); cfg == nil {
			b.Fatal(diags)
		}
	}
}
