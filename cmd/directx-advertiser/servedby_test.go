//go:build unix

package main

import (
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

	"directx-nri/discovery"
	"directx-nri/internal/crihandlers"
	"directx-nri/internal/shimname"
)

// containerd is one whose only handler has a runtime_path.
type containerd struct {
	cri.UnimplementedRuntimeServiceServer

	mu    sync.Mutex
	path  string
	asked int
}

func (c *containerd) Status(context.Context, *cri.StatusRequest) (*cri.StatusResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked++
	config := fmt.Sprintf(`{"containerd": {"runtimes": {"usual": {"runtimeType": "io.containerd.runc.v2", "runtimePath": %q}}}}`, c.path)
	return &cri.StatusResponse{Info: map[string]string{"config": config}}, nil
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

func newGate(t *testing.T, socket string) *shimGate {
	t.Helper()
	gate, err := newShimGate(socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(gate.Close)
	// Each question finds the last answer too old.
	now := time.Now()
	gate.now = func() time.Time { now = now.Add(answerAge); return now }
	return gate
}

func TestShimGate(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	shim := filepath.Join(folder, shimname.Name)
	if err := os.WriteFile(shim, nil, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		path  string
		want  error
		words string
	}{
		"routed":        {path: shim},
		"not routed":    {path: "", want: crihandlers.ErrNotRouted, words: "runtime handler usual is not set; run 'dxctl runtime configure --restart'"},
		"another shim":  {path: "/usr/bin/other", want: crihandlers.ErrNotRouted, words: "/usr/bin/other"},
		"shim is gone":  {path: filepath.Join(folder, "gone", shimname.Name), want: errShimMissing, words: "run 'dxctl runtime install'"},
		"no containerd": {path: "none", words: "ask containerd"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			socket := filepath.Join(t.TempDir(), "s")
			if test.path != "none" {
				(&containerd{path: test.path}).serve(t, socket)
			}
			err := newGate(t, socket).Ready(t.Context())
			if (err == nil) != (test.want == nil && test.words == "") || !errors.Is(err, test.want) && test.want != nil {
				t.Fatalf("error %v, want %v", err, test.want)
			}
			if err != nil && !strings.Contains(err.Error(), test.words) {
				t.Errorf("error %v, want one that says %q", err, test.words)
			}
		})
	}
}

func TestShimGateAsksOnceForMany(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "s")
	c := &containerd{}
	c.serve(t, socket)
	gate := newGate(t, socket)
	now := time.Now()
	gate.now = func() time.Time { return now }
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := gate.Ready(ended); err == nil || errors.Is(err, crihandlers.ErrNotRouted) {
		t.Errorf("for one who has gone: %v", err)
	}
	var group sync.WaitGroup
	for range 10 {
		group.Go(func() {
			if err := gate.Ready(t.Context()); !errors.Is(err, crihandlers.ErrNotRouted) {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if c.asked != 1 {
		t.Errorf("asked %d times", c.asked)
	}
	now = now.Add(answerAge)
	if err := gate.Ready(t.Context()); !errors.Is(err, crihandlers.ErrNotRouted) || c.asked != 2 {
		t.Errorf("later: %v, asked %d times", err, c.asked)
	}
}

// oneGPU is a source with one device.
type oneGPU struct{ discovery.Source }

func (oneGPU) Devices(context.Context) ([]discovery.Device, error) {
	return []discovery.Device{{InstanceID: "GPU"}}, nil
}

func TestGatedSource(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	shim, socket := filepath.Join(folder, shimname.Name), filepath.Join(folder, "s")
	if err := os.WriteFile(shim, nil, 0o700); err != nil {
		t.Fatal(err)
	}
	log := logrus.New()
	log.SetOutput(t.Output())
	source := &gatedSource{Source: oneGPU{}, gate: newGate(t, socket).Ready, log: log}
	check := func(when string, want int, wantErr bool) {
		t.Helper()
		devices, err := source.Devices(t.Context())
		if len(devices) != want || (err != nil) != wantErr {
			t.Errorf("%s: %v, %v", when, devices, err)
		}
	}
	check("no containerd", 0, true)
	c := &containerd{}
	stop := c.serve(t, socket)
	source.gate = newGate(t, socket).Ready // dials anew at once
	check("not configured", 0, true)
	c.set(shim)
	check("configured", 1, false)
	stop()
	check("containerd restarts", 1, false)
	c.serve(t, socket)
	source.gate = newGate(t, socket).Ready
	check("containerd is back", 1, false)
	c.set("")
	check("unconfigured", 0, false)
	c.set(shim)
	check("configured again", 1, false)
	if err := os.Remove(shim); err != nil {
		t.Fatal(err)
	}
	check("the shim is gone", 0, false)
}
