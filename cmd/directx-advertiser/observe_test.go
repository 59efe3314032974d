package main

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"directx-nri/advertiser"
	"directx-nri/discovery"
	"directx-nri/internal/metrics"
	"directx-nri/internal/testutil"
)

func TestNodeForTheMetrics(t *testing.T) {
	t.Parallel()
	status := func() advertiser.Status {
		return advertiser.Status{
			Devices: []advertiser.DeviceStatus{{Kind: discovery.KindDisplay, Healthy: true}, {}},
			Resources: []advertiser.ResourceStatus{{Name: "x/a", Registered: true, GPUs: []advertiser.GPUStatus{
				{InstanceID: "A", LocationPath: "PCIROOT(0)", Replicas: 4},
				{InstanceID: "B", LocationPath: "PCIROOT(1)", Replicas: 4}, {InstanceID: "C", LocationPath: "PCIROOT(1)", Replicas: 4},
				{InstanceID: "D", Replicas: 1},
			}}},
		}
	}
	held := func(context.Context) (map[string][]string, error) {
		return map[string][]string{"x/a": {"A::0", "A::3", "D::0", "not ours"}, "x/b": {"A::1"}}, nil
	}
	number := func(n int) *int { return &n }
	want := metrics.Node{
		Devices: []metrics.Device{{Kind: "display", Healthy: true}, {Kind: "none"}},
		Resources: []metrics.Resource{{Name: "x/a", Registered: true, GPUs: []metrics.GPU{
			{Name: "PCIROOT(0)", Replicas: 4, InUse: number(2)},
			// Two series of one name would be none at all.
			{Name: "B", Replicas: 4, InUse: number(0)}, {Name: "C", Replicas: 4, InUse: number(0)},
			{Name: "D", Replicas: 1, InUse: number(1)},
		}}},
	}
	if diff := cmp.Diff(want, node(status, held)(t.Context())); diff != "" {
		t.Error(diff)
	}
	unknown := func(context.Context) (map[string][]string, error) { return nil, errors.New("no kubelet") }
	for _, g := range node(status, unknown)(t.Context()).Resources[0].GPUs {
		if g.InUse != nil {
			t.Errorf("%s: %d in use, and nobody knows", g.Name, *g.InUse)
		}
	}
}

// lines is a log that a test reads while it is written.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// TestMetricsAndHealthOfTheWholeProgram runs it without a kubelet.
func TestMetricsAndHealthOfTheWholeProgram(t *testing.T) {
	t.Parallel()
	folder := testutil.ShortDir(t)
	inventory := filepath.Join(folder, "gpus.yaml")
	err := os.WriteFile(inventory, []byte(`apiVersion: directx.microsoft.com/v1alpha1
kind: Inventory
devices:
  - instanceID: 'VMBUS\0'
    display: true
    linux: {deviceNodes: [{path: /dev/null, containerPath: /dev/dxg}]}
`), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	// The configuration takes no port that the system is to choose.
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	listen := free.Addr().String()
	free.Close()
	command := newCommand()
	log := &lines{}
	command.SetErr(log)
	command.SetArgs([]string{
		"--inventory", inventory, "--state-dir", filepath.Join(folder, "state"),
		"--kubelet-dir", folder, "--injection", "kubelet", "--replicas", "4", "--metrics-address", listen, "--log-format", "json",
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
	address := ""
	for deadline := time.Now().Add(20 * time.Second); address == ""; time.Sleep(5 * time.Millisecond) {
		if match := regexp.MustCompile(`"address":"([^"]+)"`).FindStringSubmatch(log.String()); match != nil {
			address = match[1]
		}
		if time.Now().After(deadline) {
			t.Fatal(log)
		}
	}
	for page, want := range map[string]struct {
		status int
		says   []string
	}{
		"/healthz": {200, []string{"ok"}},
		"/readyz":  {503, []string{"the kubelet does not watch directx.microsoft.com/compute, directx.microsoft.com/display"}},
		"/metrics": {200, []string{
			`directx_build_info{`, `directx_injection_mode{mode="kubelet"} 1`, `directx_assignment_mode{mode="location-path",`,
			`directx_devices{health="healthy",kind="display"} 1`, `directx_replicas{gpu="VMBUS\\0",resource="directx.microsoft.com/display"} 4`,
			`directx_resource_registered{resource="directx.microsoft.com/display"} 0`, "process_resident_memory_bytes",
		}},
	} {
		var problem string
		for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
			if problem = testutil.Answers(t, "http://"+address+page, want.status, want.says...); problem == "" {
				break
			}
			if time.Now().After(deadline) {
				t.Errorf("%s: %s", page, problem)
				break
			}
		}
	}
	if !strings.Contains(log.String(), "given GPUs by the kubelet") {
		t.Error("the log does not tell what this mode cannot give")
	}
}

func TestMetricsAddressThatIsTaken(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	folder := t.TempDir()
	command := newCommand()
	command.SilenceErrors, command.SilenceUsage = true, true
	command.SetErr(io.Discard)
	command.SetArgs([]string{"--inventory", "/nowhere/x.yaml", "--state-dir", folder + "/state", "--kubelet-dir", folder, "--nri-socket=", "--metrics-address", taken.Addr().String()})
	if err := command.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), "set metrics.address to") {
		t.Error(err)
	}
}
