//go:build unix

package shimcheck

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/directx-nri/directx-nri/internal/containerdconfig"
	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/internal/shimfile"
	"github.com/directx-nri/directx-nri/internal/testutil/grpctest"
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

func newChecker(socket string) *Checker {
	// The last answer is always too old.
	now := time.Now()
	return &Checker{stateDir: filepath.Dir(socket), criSocket: paths.CRISocket(socket), now: func() time.Time { now = now.Add(maxAge); return now }}
}

func TestChecker(t *testing.T) {
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
		"another sandboxer": {path: shim, sandbox: "shim", want: containerdconfig.ErrShimNotUsed, words: "no runtime handler can have GPUs"},
		"not routed":        {path: "", want: containerdconfig.ErrShimNotUsed, words: "runtime handler usual is not set; run 'dxctl runtime configure --restart'"},
		"another shim":      {path: "/usr/bin/other", want: containerdconfig.ErrShimNotUsed, words: "/usr/bin/other"},
		"shim is gone":      {path: filepath.Join(dir, "gone", shimfile.Base), want: errShimMissing, words: "run 'dxctl runtime install'"},
		"no containerd":     {path: "none", words: "/s right?"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			socket := filepath.Join(t.TempDir(), "s")
			if test.path != "none" {
				grpctest.Serve(t, socket, &cri.RuntimeService_ServiceDesc, &containerd{path: test.path, sandbox: test.sandbox})
			}
			err := newChecker(socket).Check(t.Context())
			if (err == nil) != (test.want == nil && test.words == "") || !errors.Is(err, test.want) && test.want != nil {
				t.Fatalf("error %v, want %v", err, test.want)
			}
			if err != nil && (!strings.Contains(err.Error(), test.words) || IsDefinite(err) != (test.want != nil)) {
				t.Errorf("error %v, want one with %q; definite: %t", err, test.words, IsDefinite(err))
			}
		})
	}
}

func TestCheckerCaches(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "s")
	c := &containerd{}
	grpctest.Serve(t, socket, &cri.RuntimeService_ServiceDesc, c)
	checker := newChecker(socket)
	now := time.Now()
	checker.now = func() time.Time { return now }
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := checker.Check(ended); err == nil || errors.Is(err, containerdconfig.ErrShimNotUsed) {
		t.Errorf("with an ended context: %v", err)
	}
	var group sync.WaitGroup
	for range 10 {
		group.Go(func() {
			if err := checker.Check(t.Context()); !errors.Is(err, containerdconfig.ErrShimNotUsed) {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if c.queries != 1 {
		t.Errorf("%d queries", c.queries)
	}
	now = now.Add(maxAge)
	if err := checker.Check(t.Context()); !errors.Is(err, containerdconfig.ErrShimNotUsed) || c.queries != 2 {
		t.Errorf("later: %v, %d queries", err, c.queries)
	}
	if err := errors.Join(os.Chmod(checker.stateDir, 0o700), shimfile.WriteNotServed(checker.stateDir, "a reason")); err != nil {
		t.Fatal(err)
	}
	if err := checker.Check(t.Context()); !errors.Is(err, errNotServed) || !IsDefinite(err) {
		t.Errorf("pods are not served: %v, from the cache", err)
	}
}
