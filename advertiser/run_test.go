package advertiser

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/directx-nri/directx-nri/advertiser/config"
	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/durable"
	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/internal/testutil/allocationtest"
	"github.com/directx-nri/directx-nri/internal/testutil/grpctest"
	"github.com/directx-nri/directx-nri/shim/diversion"
	"github.com/directx-nri/directx-nri/shim/shimfile"
)

// TestConfigure: before a container starts, the component that gives it its GPUs is checked.
func TestConfigure(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		injection  policy.Injection
		nodeOS     string
		inject     bool
		atCreation bool   // AllocatesAtCreation
		want       string // in the error of CheckStart, "" if there is none
	}{
		"plugin":              {injection: policy.InjectByNRI, nodeOS: "linux", want: "is directx-nri running"},
		"shim":                {injection: policy.InjectByShim, nodeOS: "windows", atCreation: true},
		"shim, in the suites": {injection: policy.InjectByShim, nodeOS: "linux", atCreation: true},
		"kubelet":             {injection: policy.InjectByKubelet, nodeOS: "windows", inject: true, atCreation: true},
		"kubelet on Linux":    {injection: policy.InjectByKubelet, nodeOS: "linux", inject: true},
	} {
		dir := testutil.ShortDir(t)
		log := testutil.Quiet()
		d := New(Options{RuntimeDir: dir, PodResources: dir + "/p"}, config.Compiler{StateDir: dir, NodeOS: test.nodeOS}, "v", log)
		r := run{Daemon: d, policy: policy.Resolved{Policy: policy.Policy{Injection: test.injection}}}
		c := r.pluginConfig()
		if (c.Inject != nil) != test.inject {
			t.Errorf("%s: injects: %t", name, c.Inject != nil)
		}
		if checks := c.CheckStart != nil; checks != (test.want != "") || c.AllocatesAtCreation != test.atCreation {
			t.Errorf("%s: checks starts: %t; allocates at creation: %t", name, checks, c.AllocatesAtCreation)
		} else if c.CheckStart != nil {
			testutil.CheckError(t, name, c.CheckStart(t.Context()), test.want)
		}
	}
}

func TestNeedsNewRun(t *testing.T) {
	t.Parallel()
	for injection, want := range map[policy.Injection]bool{policy.InjectByNRI: false, policy.InjectByShim: false, policy.InjectByKubelet: true, policy.InjectAuto: true} {
		before := config.Compiled{Policy: policy.Policy{Injection: injection}}
		after := before
		after.Devices = []discovery.Device{{InstanceID: "new"}}
		after.Policy.Log.Level, after.Policy.ExtraMounts.Max, after.Policy.CompiledFrom.Config, after.Policy.VisibilityHints = "debug", 1, "c", true
		if got := needsNewRun(before, after, "windows"); got != want {
			t.Errorf("%s: %t", injection, got)
		}
	}
}

// TestRepair: without a valid configuration, containers still start.
//
//nolint:paralleltest // It sets a variable.
func TestRepair(t *testing.T) {
	dir := t.TempDir()
	t.Setenv(paths.StateDirVariable, dir)
	testutil.WriteFile(t, paths.RealShim(dir), "the real shim", 0o700)
	d := New(Options{Diversion: diversion.NewKeeper(dir, "", testutil.Quiet())},
		config.Compiler{StateDir: dir, File: filepath.Join(dir, "none"), Required: true}, "v", testutil.Quiet())
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- d.Run(ctx) }()
	testutil.Eventually(t, "a shim", func() bool { return durable.Exists(filepath.Join(dir, paths.Runhcs)) })
	cancel()
	testutil.NoError(t, <-ended)
}

// containerd is a CRI service.
type containerd struct {
	cri.UnimplementedRuntimeServiceServer
	version string
}

func (c *containerd) Version(context.Context, *cri.VersionRequest) (*cri.VersionResponse, error) {
	return &cri.VersionResponse{RuntimeVersion: c.version}, nil
}

func (*containerd) Status(context.Context, *cri.StatusRequest) (*cri.StatusResponse, error) {
	config := `{"containerd":{"defaultRuntimeName":"r","runtimes":{"r":{"runtimeType":"io.containerd.runhcs.v1"}}}}`
	return &cri.StatusResponse{Info: map[string]string{"config": config}}, nil
}

// TestListDevices: GPUs are unhealthy while containers would not start with them, and nothing is listed while
// that is not known.
func TestListDevices(t *testing.T) {
	t.Parallel()
	const gpuID = "GPU"
	for name, test := range map[string]struct {
		configured, inForce policy.Injection
		version             string // of containerd, which does not run without
		noGPU, noLock       bool
		bypassed            string
		broken              bool // the diversion
		reason, err         string
		newRun              bool
	}{
		"shim":                     {configured: policy.InjectAuto, inForce: policy.InjectByShim, version: "v2.1.0"},
		"shim, bypassed":           {configured: policy.InjectByShim, inForce: policy.InjectByShim, version: "v2.1.0", bypassed: "version 3", reason: "version 3"},
		"shim, bypassed before":    {configured: policy.InjectByShim, inForce: policy.InjectByShim, version: "v2.1.0", bypassed: "version 3", broken: true, reason: "runhcs"},
		"containerd does not run":  {configured: policy.InjectByShim, inForce: policy.InjectByShim, err: "is containerd running"},
		"no GPU":                   {configured: policy.InjectByShim, inForce: policy.InjectByShim, noGPU: true},
		"an update of containerd":  {configured: policy.InjectAuto, inForce: policy.InjectByKubelet, version: "v2.0.6", err: "injection: shim", newRun: true},
		"no update of containerd":  {configured: policy.InjectAuto, inForce: policy.InjectByKubelet, version: "v2.0.5", bypassed: "version 3"},
		"the records were removed": {configured: policy.InjectByKubelet, inForce: policy.InjectByKubelet, noLock: true, err: "removed", newRun: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := testutil.ShortDir(t)
			socket, records := filepath.Join(dir, "s"), filepath.Join(dir, "records")
			if test.version != "" {
				grpctest.Serve(t, socket, &cri.RuntimeService_ServiceDesc, &containerd{version: test.version})
			}
			testutil.NoError(t, shimfile.RecordBypass(dir, test.bypassed))
			p := policy.Default()
			p.Injection = test.inForce
			r := run{
				Daemon:     New(Options{CRISocket: socket}, config.Compiler{StateDir: dir, NodeOS: "windows"}, "v", testutil.Quiet()),
				configured: test.configured, policy: policy.Resolved{Policy: p}, recorder: allocationtest.Open(t, records),
				source: discovery.Static{{InstanceID: gpuID, SupportsDisplay: !test.noGPU, LocationPath: "PCIROOT(0)#PCI(1B00)"}},
			}
			if test.broken {
				r.options.Diversion = diversion.NewKeeper(t.TempDir(), "", testutil.Quiet())
			}
			if test.noLock {
				testutil.NoError(t, os.RemoveAll(records))
			}
			devices, problem, err := r.listDevices(t.Context())
			testutil.CheckError(t, "list", err, test.err)
			if errors.Is(err, errNewRun) != test.newRun {
				t.Errorf("new run: %v", err)
			}
			if err != nil {
				return
			}
			if reason := devices[0].Health.Reason; len(devices) != 1 || (reason != "") != (test.reason != "") || !strings.Contains(reason, test.reason) {
				t.Errorf("%+v", devices)
			}
			testutil.CheckError(t, "problem", problem, test.reason)
		})
	}
}

// TestShareDxctl: pods can run the dxctl of a node with a GPU while a daemon runs, and no GPU depends on that.
func TestShareDxctl(t *testing.T) {
	t.Parallel()
	dir, gpus := t.TempDir(), []discovery.Device{windowsGPU("1B00", "nv.inf")}
	shared, records := filepath.Join(dir, paths.DxctlFile), allocationtest.Open(t, filepath.Join(dir, "records"))
	p := policy.Default()
	p.Injection = policy.InjectByKubelet
	testutil.NoError(t, os.WriteFile(filepath.Join(dir, "v1"), []byte("v1"), 0o600), os.WriteFile(filepath.Join(dir, "v2"), []byte("v2"), 0o600))
	var r *run
	for _, test := range []struct {
		dxctl, want string
		gpus        []discovery.Device
	}{{"v1", "", nil}, {"v1", "v1", gpus}, {"v2", "v2", gpus}, {"missing", "v2", gpus}, {"v1", "v2", nil}} {
		r = testRun("windows", p, test.gpus...)
		r.options.Dxctl, r.compiler.StateDir, r.configured, r.recorder = filepath.Join(dir, test.dxctl), dir, p.Injection, records
		devices, _, err := r.listDevices(t.Context())
		copied, _ := os.ReadFile(shared)
		if err != nil || len(devices) != len(test.gpus) || len(devices) > 0 && !devices[0].Health.OK() || string(copied) != test.want {
			t.Errorf("%s: dxctl %q, %+v, %v", test.dxctl, copied, devices, err)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.Run(ended); err != nil || durable.Exists(shared) {
		t.Errorf("at the end: %v, dxctl exists: %t", err, durable.Exists(shared))
	}
}
