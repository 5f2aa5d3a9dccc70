package acl_test

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/acl"
)

var update = flag.Bool("update", false, "rewrite the expected halves of the golden files")

const goldenMark = "----\n"

// eachGolden runs produce on the input of every testdata file that matches and
// compares with what stands below the dashes. A `\r` at the end of an input
// line, written `<CR>`, stands for a carriage return.
func eachGolden(t *testing.T, pattern string, produce func(t *testing.T, src []byte) string) {
	files, err := filepath.Glob(filepath.Join("testdata", pattern))
	if err != nil || len(files) == 0 {
		t.Fatalf("no golden files for %s: %v", pattern, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".golden"), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			input, want, found := bytes.Cut(data, []byte("\n"+goldenMark))
			if !found {
				t.Fatal("no dashes")
			}
			src := bytes.ReplaceAll(append(input, '\n'), []byte("<CR>"), []byte("\r"))
			got := produce(t, src)
			if *update {
				out := append(append(append([]byte{}, data[:len(input)]...), "\n"+goldenMark...), got...)
				if err := os.WriteFile(file, out, 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if got != string(want) {
				t.Errorf("got:\n%s\nwant:\n%s", got, want)
			}
		})
	}
}

func TestParseGoldens(t *testing.T) {
	eachGolden(t, "parse/*.golden", func(t *testing.T, src []byte) string {
		doc, ds := acl.Parse("in.acl", src)
		if len(ds) > 0 {
			return list(ds)
		}
		return dump(doc, true)
	})
}

// eachInput runs check on the input of every golden file.
func eachInput(t *testing.T, check func(t *testing.T, src []byte)) {
	for file, src := range inputs(t) {
		t.Run(file, func(t *testing.T) { check(t, src) })
	}
}

// inputs returns the input half of every golden file, by file name.
func inputs(t testing.TB) map[string][]byte {
	files, err := filepath.Glob(filepath.Join("testdata", "*", "*.golden"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no golden files: %v", err)
	}
	out := make(map[string][]byte, len(files))
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		input, _, _ := bytes.Cut(data, []byte("\n"+goldenMark))
		out[file] = bytes.ReplaceAll(append(input, '\n'), []byte("<CR>"), []byte("\r"))
	}
	return out
}
