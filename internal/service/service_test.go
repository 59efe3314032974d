//go:build unix

package service

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestCommand(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "a file")
	if err := Command("echo done > '" + file + "'").Restart(context.Background()); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(file); err != nil || string(got) != "done\n" {
		t.Errorf("%q, %v", got, err)
	}
	err := Command("echo first; echo why >&2; exit 3").Restart(context.Background())
	if err == nil || !strings.Contains(err.Error(), "exit status 3: why") {
		t.Errorf("error %v, want the status and the last line", err)
	}
	for command, limit := range map[string]time.Duration{"sleep 30 &": time.Minute, "sleep 30; true": 100 * time.Millisecond} {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		start := time.Now()
		if err := Command(command).Restart(ctx); (err == nil) != (limit == time.Minute) || time.Since(start) > 20*time.Second {
			t.Errorf("%s: %v after %v", command, err, time.Since(start))
		}
	}
}

func TestLevelOf(t *testing.T) {
	t.Parallel()
	for entry, want := range map[string]string{
		`time="x" level=warning msg="level=info"`: "warning", `{"level":"info","msg":"x"}`: "info", "directx-advertiser: no": "error",
	} {
		if got := levelOf(entry); got != want {
			t.Errorf("%s: %s, want %s", entry, got, want)
		}
	}
}
