package main

import (
	"bytes"
	"context"
	"io"
	"path/filepath"
	"testing"

	"github.com/directx-nri/directx-nri/internal/testutil"
)

func TestFlags(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"no NRI":  {[]string{"--nri-socket="}, "--nri-socket is required"},
		"index":   {[]string{"--nri-socket=x", "--nri-index=7"}, `--nri-index "7" is not a number from 00 to 99`},
		"unknown": {[]string{"--inventory=x"}, "unknown flag"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			command := newCommand()
			command.SetArgs(append([]string{"--state-dir", t.TempDir()}, test.args...))
			command.SilenceErrors, command.SilenceUsage = true, true
			command.SetErr(new(bytes.Buffer))
			testutil.CheckError(t, "run", command.ExecuteContext(context.Background()), test.want)
		})
	}
}

// TestMetricsAndHealth runs the whole program without containerd.
func TestMetricsAndHealth(t *testing.T) {
	t.Parallel()
	dir := testutil.ShortDir(t)
	address := testutil.FreeAddress(t)
	command := newCommand()
	command.SilenceErrors, command.SilenceUsage = true, true
	command.SetErr(io.Discard)
	command.SetArgs([]string{
		"--state-dir", filepath.Join(dir, "state"), "--runtime-dir", filepath.Join(dir, "run"),
		"--nri-socket", filepath.Join(dir, "nri.sock"), "--metrics-address", address,
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- command.ExecuteContext(ctx) }()
	defer func() {
		cancel()
		testutil.NoError(t, <-done)
	}()
	for _, page := range []struct {
		path   string
		status int
		says   []string
	}{
		{"/healthz", 200, []string{"ok"}},
		{"/readyz", 503, []string{"not registered with the container runtime"}},
		{"/metrics", 200, []string{`directx_build_info{`, `program="directx-nri"`}},
	} {
		testutil.Eventually(t, page.path, func() bool {
			return testutil.Answers(t, "http://"+address+page.path, page.status, page.says...) == ""
		})
	}
}
