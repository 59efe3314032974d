//go:build unix

package service

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/directx-nri/directx-nri/internal/testutil"
)

func TestCommand(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "a file")
	testutil.NoError(t, Command("echo done > '"+file+"'").Restart(context.Background()))
	if got, err := os.ReadFile(file); err != nil || string(got) != "done\n" {
		t.Errorf("%q, %v", got, err)
	}
	err := Command("echo first; echo why >&2; exit 3").Restart(context.Background())
	testutil.CheckError(t, "a command that fails, with its status and last line", err, "exit status 3: why")
}

func TestCheckUnit(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	testutil.WriteFile(t, filepath.Join(dir, "systemctl"), "#!/bin/sh\necho LoadState=$4", 0o700)
	testutil.NoError(t, Named("loaded").Check(t.Context()))
	testutil.CheckError(t, "no unit", Named("masked").Check(t.Context()), "restart masked: LoadState=masked; set --service")
}

// The processes that a command has started go on, as a containerd must that the command started.
func TestCommandLeavesProcesses(t *testing.T) {
	t.Parallel()
	for end, limit := range map[string]time.Duration{"": time.Minute, "; wait": 3 * time.Second} {
		pidFile := filepath.Join(t.TempDir(), "pid")
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		start := time.Now()
		err := Command("sleep 30 & echo $! > '" + pidFile + "'" + end).Restart(ctx)
		if (err == nil) != (end == "") || time.Since(start) > 20*time.Second {
			t.Errorf("%q: %v after %v", end, err, time.Since(start))
		}
		text, err := os.ReadFile(pidFile)
		testutil.NoError(t, err)
		pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
		testutil.NoError(t, err)
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Errorf("%q: process %d: %v", end, pid, err)
		}
	}
}
