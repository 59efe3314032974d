package main

import (
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"directx-nri/internal/testutil"
)

// TestMetricsAndHealthOfTheWholeProgram runs it without containerd.
func TestMetricsAndHealthOfTheWholeProgram(t *testing.T) {
	t.Parallel()
	folder := testutil.ShortDir(t)
	inventory := filepath.Join(folder, "gpus.yaml")
	if err := os.WriteFile(inventory, []byte("apiVersion: directx.microsoft.com/v1alpha1\nkind: Inventory\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	address := testutil.FreeAddress(t)
	command := newCommand()
	command.SilenceErrors, command.SilenceUsage = true, true
	command.SetErr(io.Discard)
	command.SetArgs([]string{
		"--inventory", inventory, "--state-dir", filepath.Join(folder, "state"), "--runtime-dir", filepath.Join(folder, "run"),
		"--nri-socket", filepath.Join(folder, "nri.sock"), "--metrics-address", address,
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- command.ExecuteContext(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	for _, page := range []struct {
		path   string
		status int
		says   []string
	}{
		{"/healthz", 200, []string{"ok"}},
		{"/readyz", 503, []string{"not registered with the container runtime", "is containerd running"}},
		{"/metrics", 200, []string{`directx_build_info{`, `program="directx-nri"`, `directx_assignment_mode{mode="location-path",`, "directx_evictions_total 0"}},
	} {
		var problem string
		for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
			if problem = testutil.Answers(t, "http://"+address+page.path, page.status, page.says...); problem == "" {
				break
			}
		}
		if problem != "" {
			t.Errorf("%s: %s", page.path, problem)
		}
	}
}

func TestMetricsAddressThatIsTaken(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	command := newCommand()
	command.SilenceErrors, command.SilenceUsage = true, true
	command.SetErr(io.Discard)
	folder := t.TempDir()
	command.SetArgs([]string{"--inventory", folder + "/x.yaml", "--runtime-dir", folder, "--nri-socket", folder + "/s", "--metrics-address", taken.Addr().String()})
	if err := command.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), "set metrics.pluginAddress to") {
		t.Error(err)
	}
}
