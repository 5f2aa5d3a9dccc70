package telemetry_test

import (
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/telemetry"
)

func TestProcessLog(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for _, c := range []struct {
		format string
		json   bool
	}{{"", true}, {"auto", true}, {"json", true}, {"text", false}} { // a file is no terminal
		if err := file.Truncate(0); err != nil {
			t.Fatal(err)
		}
		if _, err := file.Seek(0, 0); err != nil {
			t.Fatal(err)
		}
		h, err := telemetry.NewHandler(telemetry.ProcessLog{Output: file, Format: c.format, Level: slog.LevelWarn})
		if err != nil {
			t.Fatal(err)
		}
		log := slog.New(h).With("client_secret", "canary")
		log.Info("too low")
		log.Warn("shown", "address", "127.0.0.1:80", "Authorization", "Bearer canary", "api_key", "canary", "set-cookie", "canary",
			slog.Group("credentials", "name", "canary"), "auth_token", []byte("canary"), "token_env", "NAME_OF_TOKEN", "prompt_tokens", 17, "took", 30*time.Second,
			"url", "http://user:canary@example.com/a@b", "error", errors.New("dial redis://:canary@10.0.0.1: refused, see http://example.com/"))
		text := content(t, file.Name())
		if strings.Contains(text, "canary") || strings.Contains(text, "too low") {
			t.Errorf("%q: %s", c.format, text)
		}
		for _, part := range []string{"shown", "127.0.0.1:80", "NAME_OF_TOKEN", "17", "30s", "example.com/a@b", "refused", "http://example.com/", "10.0.0.1"} {
			if !strings.Contains(text, part) {
				t.Errorf("%q: no %s in %s", c.format, part, text)
			}
		}
		if json.Valid([]byte(text)) != c.json {
			t.Errorf("%q: JSON is %v, want %v: %s", c.format, !c.json, c.json, text)
		}
	}
	if _, err := telemetry.NewHandler(telemetry.ProcessLog{Format: "xml"}); err == nil {
		t.Error("an unknown format is accepted")
	}
}
