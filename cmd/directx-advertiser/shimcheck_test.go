//go:build unix

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/containerdconfig"
	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/internal/shimfile"
	"github.com/directx-nri/directx-nri/internal/testutil"
)

// containerd is one whose only handler has a runtime_path.
type containerd struct {
	cri.UnimplementedRuntimeServiceServer

	mu      sync.Mutex
	path    string
	sandbox string // its sandboxer
	queries int
}

func (c *containerd) Status(context.Context, *cri.StatusRequest) (*cri.StatusResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.queries++
	config := fmt.Sprintf(`{"containerd": {"defaultRuntimeName": "usual", "runtimes": {"usual": {"runtimeType": "io.containerd.runc.v2", "runtimePath": %q, "sandboxMode": %q}}}}`, c.path, c.sandbox)
	return &cri.StatusResponse{Info: map[string]string{"config": config}}, nil
}

func (*containerd) Version(context.Context, *cri.VersionRequest) (*cri.VersionResponse, error) {
	return &cri.VersionResponse{RuntimeVersion: "v1.7.35"}, nil
}

func (c *containerd) set(path string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.path = path
}

// serve serves CRI at path until stop is called.
func (c *containerd) serve(t *testing.T, path string) (stop func()) {
	t.Helper()
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	cri.RegisterRuntimeServiceServer(server, c)
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(listener) }()
	stop = sync.OnceFunc(func() { server.Stop(); <-done })
	t.Cleanup(stop)
	return stop
}

func newChecker(socket string) *shimChecker {
	// The last answer is always too old.
	now := time.Now()
	return &shimChecker{stateDir: filepath.Dir(socket), criSocket: paths.CRISocket(socket), now: func() time.Time { now = now.Add(checkAge); return now }}
}

func TestShimChecker(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	shim := filepath.Join(dir, shimfile.Base)
	if err := os.WriteFile(shim, nil, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		path    string
		sandbox string
		want    error
		words   string
	}{
		"routed":            {path: shim},
		"another sandboxer": {path: shim, sandbox: "shim", want: containerdconfig.ErrNotRouted, words: "no runtime handler can have GPUs"},
		"not routed":        {path: "", want: containerdconfig.ErrNotRouted, words: "runtime handler usual is not set; run 'dxctl runtime configure --restart'"},
		"another shim":      {path: "/usr/bin/other", want: containerdconfig.ErrNotRouted, words: "/usr/bin/other"},
		"shim is gone":      {path: filepath.Join(dir, "gone", shimfile.Base), want: errShimMissing, words: "run 'dxctl runtime install'"},
		"no containerd":     {path: "none", words: "/s right?"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			socket := filepath.Join(t.TempDir(), "s")
			if test.path != "none" {
				(&containerd{path: test.path, sandbox: test.sandbox}).serve(t, socket)
			}
			err := newChecker(socket).Check(t.Context())
			if (err == nil) != (test.want == nil && test.words == "") || !errors.Is(err, test.want) && test.want != nil {
				t.Fatalf("error %v, want %v", err, test.want)
			}
			if err != nil && !strings.Contains(err.Error(), test.words) {
				t.Errorf("error %v, want one with %q", err, test.words)
			}
		})
	}
}

func TestShimCheckerCaches(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "s")
	c := &containerd{}
	c.serve(t, socket)
	checker := newChecker(socket)
	now := time.Now()
	checker.now = func() time.Time { return now }
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := checker.Check(ended); err == nil || errors.Is(err, containerdconfig.ErrNotRouted) {
		t.Errorf("with an ended context: %v", err)
	}
	var group sync.WaitGroup
	for range 10 {
		group.Go(func() {
			if err := checker.Check(t.Context()); !errors.Is(err, containerdconfig.ErrNotRouted) {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if c.queries != 1 {
		t.Errorf("%d queries", c.queries)
	}
	now = now.Add(checkAge)
	if err := checker.Check(t.Context()); !errors.Is(err, containerdconfig.ErrNotRouted) || c.queries != 2 {
		t.Errorf("later: %v, %d queries", err, c.queries)
	}
	if err := errors.Join(os.Chmod(checker.stateDir, 0o700), shimfile.WriteNotServed(checker.stateDir, shimfile.NotServed{})); err != nil {
		t.Fatal(err)
	}
	if err := checker.Check(t.Context()); !errors.Is(err, errNotServed) {
		t.Errorf("the real shim keeps ours away: %v, from the cache", err)
	}
}

func TestConditionalSource(t *testing.T) {
	t.Parallel()
	dir := testutil.ShortDir(t)
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	shim, socket := filepath.Join(dir, shimfile.Base), filepath.Join(dir, "s")
	if err := os.WriteFile(shim, nil, 0o700); err != nil {
		t.Fatal(err)
	}
	var lines bytes.Buffer
	log := logrus.New()
	log.SetOutput(&lines)
	source := &conditionalSource{Source: discovery.Static{{InstanceID: "GPU"}}, check: newChecker(socket).Check, log: log}
	check := func(when string, want int, wantErr bool) {
		t.Helper()
		devices, err := source.Devices(t.Context())
		// Ready has the definite errors only.
		if ready := source.Ready(t.Context(), "", nil); (ready != nil) != isDefinite(source.check(t.Context())) {
			t.Errorf("%s: ready %v", when, ready)
		}
		if len(devices) != want || (err != nil) != wantErr {
			t.Errorf("%s: %v, %v", when, devices, err)
		}
	}
	check("no containerd", 0, true)
	c := &containerd{}
	stop := c.serve(t, socket)
	check("not configured", 0, true)
	c.set(shim)
	check("configured", 1, false)
	check("nothing new", 1, false)
	if got := strings.Count(lines.String(), "Advertising GPUs"); got != 1 {
		t.Errorf("logged %d times: %s", got, &lines)
	}
	stop()
	check("containerd restarts", 1, false)
	c.serve(t, socket)
	check("containerd is back", 1, false)
	c.set("")
	check("unconfigured", 0, false)
	c.set(shim)
	check("configured again", 1, false)
	if err := shimfile.WriteNotServed(dir, shimfile.NotServed{Shim: "/bin/other", Version: 3}); err != nil {
		t.Fatal(err)
	}
	check("the real shim keeps ours away", 0, false)
	if !strings.Contains(lines.String(), "real shim /bin/other answers") {
		t.Errorf("logged %s", &lines)
	}
	if err := shimfile.ClearNotServed(dir); err != nil {
		t.Fatal(err)
	}
	check("served again", 1, false)
	if err := os.Remove(shim); err != nil {
		t.Fatal(err)
	}
	check("the shim is gone", 0, false)
}
