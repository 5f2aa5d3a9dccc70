package archtest_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/gatewaytest"
)

// forbiddenWord is text that has no place in the repository: it would mean
// something only to whoever wrote it, on the machine it was written on.
type forbiddenWord struct {
	pattern *regexp.Regexp
	because string
}

// This file is left out of the scan, because it has to spell the words.
var forbiddenWords = []forbiddenWord{
	{regexp.MustCompile(`/(work|root|home)/(go|main|shared|wt|user|\.[a-z])`), "a path of one machine"},
	{regexp.MustCompile(`(?i)\b(this|first|next|later|earlier|previous|following) issues?\b`), "how the work was planned"},
	{regexp.MustCompile(`(?i)\b(issue|ticket) #?[0-9]+\b`), "a ticket number explains nothing to a reader"},
	{regexp.MustCompile(`(?i)\bsub-?agents?\b|\bworktrees?\b`), "how the work was done"},
	{regexp.MustCompile(`(?i)\b(settled|layout|design)\.md\b`), "a document that the repository does not hold"},
	{regexp.MustCompile(`(?i)\b(proxy\.golang\.org|registry\.npmjs\.org|pypi\.org|files\.pythonhosted\.org)\b`), "a registry's host name"},
	{regexp.MustCompile(`(?i)\b(todo|fixme|xxx)\b:`), "unfinished work belongs in no released file"},
}

// scanned are the kinds of text that people read.
var scanned = []string{".go", ".md", ".sh", ".acl", ".txt", ".txtar", ".yaml", ".yml", ".json", ".service", ".socket", ".js", ".py", ".c"}

func TestForbiddenWords(t *testing.T) {
	root, err := gatewaytest.RepositoryRoot()
	if err != nil {
		t.Fatal(err)
	}
	files := 0
	err = filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, name)
		rel = filepath.ToSlash(rel)
		if d.IsDir() {
			switch rel {
			case ".git", ".cache", "bin":
				return filepath.SkipDir
			}
			if d.Name() == "node_modules" || d.Name() == "fuzz" {
				return filepath.SkipDir
			}
			return nil
		}
		if !scannable(rel) {
			return nil
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		files++
		for _, problem := range wordsIn(string(text)) {
			t.Errorf("%s:%s", rel, problem)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if files == 0 {
		t.Fatal("nothing was scanned")
	}
}

func scannable(rel string) bool {
	if rel == "internal/archtest/words_test.go" {
		return false
	}
	base := filepath.Base(rel)
	if base == "Makefile" || base == "Dockerfile" || strings.HasPrefix(rel, ".ci/") {
		return true
	}
	for _, ext := range scanned {
		if strings.HasSuffix(base, ext) {
			return true
		}
	}
	return false
}

// wordsIn returns "line: text: reason" for each forbidden word.
func wordsIn(text string) []string {
	var problems []string
	for i, line := range strings.Split(text, "\n") {
		for _, w := range forbiddenWords {
			if hit := w.pattern.FindString(line); hit != "" {
				problems = append(problems, fmt.Sprintf("%d: %s: %s", i+1, hit, w.because))
			}
		}
	}
	return problems
}

func TestForbiddenWordsAreFound(t *testing.T) {
	for text, hit := range map[string]bool{
		"see /work/shared/x":                    true,
		"see /root/.cache":                      true,
		"GET /work/items":                       false,
		"GET /home/index.html":                  false,
		"fixes issue 12":                        true,
		"left to a later issue":                 true,
		"the issue of a certificate":            false,
		"a resumed session keeps its key":       false,
		"an issue that users report":            false,
		"TODO: later":                           true,
		"http://todo.example/":                  false,
		"the User-Agent header":                 false,
		"as layout.md says":                     true,
		"a client of proxy.golang.org":          true,
		"proxy errors become a status":          false,
		"an AI agent calls the model":           false,
		"certificates are issued by the minter": false,
	} {
		if got := len(wordsIn(text)) > 0; got != hit {
			t.Errorf("wordsIn(%q) found something: %v, want %v", text, got, hit)
		}
	}
}
