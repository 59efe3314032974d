//go:build unix

package service

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
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
