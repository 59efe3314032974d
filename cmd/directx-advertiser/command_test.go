package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/directx-nri/directx-nri/advertiser/nodelabels"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/testutil"
)

// output is a log that a test reads while it is written.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// program is a running directx-advertiser without a kubelet.
type program struct {
	t                      *testing.T
	dir, stateDir, address string
	configFile, inventory  string
	log                    *output
	stopError              string // "" for none
}

const inventoryText = `apiVersion: directx.microsoft.com/v1alpha1
kind: Inventory
devices:
  - instanceID: 'VMBUS\0'
    display: true
    linux: {deviceNodes: [{path: /dev/null, containerPath: /dev/dxg}]}
`

func newProgram(t *testing.T) *program {
	t.Helper()
	dir := testutil.ShortDir(t)
	p := &program{
		t: t, dir: dir, stateDir: filepath.Join(dir, "state"), address: testutil.FreeAddress(t),
		configFile: filepath.Join(dir, "config.yaml"), inventory: filepath.Join(dir, "gpus.yaml"), log: &output{},
	}
	p.write(p.inventory, inventoryText)
	p.configure("replicas: 4")
	return p
}

// write replaces a file at once, so that the program never reads a part of it.
func (p *program) write(path, text string) {
	p.t.Helper()
	testutil.NoError(p.t, os.WriteFile(path+".new", []byte(text), 0o600), os.Rename(path+".new", path))
}

func (p *program) configure(settings string) {
	p.t.Helper()
	p.write(p.configFile, "apiVersion: directx.microsoft.com/v1alpha1\nkind: Configuration\n"+settings+"\n")
}

// start runs the program until the test ends.
func (p *program) start(args ...string) (stop func()) {
	p.t.Helper()
	command := newCommand()
	command.SetErr(p.log)
	command.SetArgs(append([]string{
		"--config", p.configFile, "--inventory", p.inventory, "--state-dir", p.stateDir, "--kubelet-dir", p.dir,
		"--runtime-dir", p.dir, "--node-os", "linux", "--metrics-address", p.address,
	}, args...))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- command.ExecuteContext(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		testutil.CheckError(p.t, "stop", <-done, p.stopError)
	})
	p.t.Cleanup(stop)
	return stop
}

func (p *program) await(page string, status int, texts ...string) {
	p.t.Helper()
	problem := ""
	defer func() {
		if p.t.Failed() {
			p.t.Logf("%s: %s\n%s", page, problem, p.log)
		}
	}()
	testutil.Eventually(p.t, page, func() bool {
		problem = testutil.Answers(p.t, "http://"+p.address+page, status, texts...)
		return problem == ""
	})
}

func TestMetricsAndHealth(t *testing.T) {
	t.Parallel()
	p := newProgram(t)
	labels := filepath.Join(p.dir, "labels")
	p.start("--injection", "kubelet", "--labels-file", labels)
	p.await("/healthz", 200, "ok")
	testutil.Eventually(t, "labels", func() bool {
		got, _ := nodelabels.Read(labels)
		return got[nodelabels.Prefix+"count"] == "1" && got[nodelabels.Prefix+"replicas"] == "4"
	})
	p.await("/readyz", 503, "the kubelet does not watch directx.microsoft.com/compute, directx.microsoft.com/display")
	p.await("/metrics", 200,
		`directx_build_info{`, fmt.Sprintf(`directx_node_info{assignment="location-path",driver_files="mount",injection="kubelet",os=%q} 1`, runtime.GOOS),
		`directx_devices{health="healthy",kind="display"} 1`, `directx_replicas{gpu="VMBUS\\0",resource="directx.microsoft.com/display"} 4`,
		`directx_resource_registered{resource="directx.microsoft.com/display"} 0`, "directx_config_last_reload_successful 1", "process_resident_memory_bytes")
}

// TestConfigurationChanges: each valid configuration is compiled and in force, and an
// invalid one changes nothing, also at the next start.
func TestConfigurationChanges(t *testing.T) {
	t.Parallel()
	p := newProgram(t)
	stop := p.start()
	replicas := func(n string) string {
		return `directx_replicas{gpu="VMBUS\\0",resource="directx.microsoft.com/display"} ` + n
	}
	p.await("/metrics", 200, replicas("4"))
	p.configure("replicas: 2")
	p.await("/metrics", 200, replicas("2"), `directx_config_reloads_total{result="applied"} 1`)
	if in, err := policy.Read(p.stateDir); err != nil || in.Resources[0].Replicas != 2 || !in.UseInventory {
		t.Errorf("policy %+v, %v", in, err)
	}
	p.configure("replicas: none")
	p.await("/metrics", 200, replicas("2"), `directx_config_reloads_total{result="refused"} 1`, "directx_config_last_reload_successful 0")
	stop()
	stop = p.start()
	p.await("/metrics", 200, replicas("2"), "directx_config_last_reload_successful 0")
	p.configure("replicas: 3")
	p.await("/metrics", 200, replicas("3"), "directx_config_last_reload_successful 1")
	p.write(p.inventory, strings.ReplaceAll(inventoryText, "'VMBUS\\0'", "'VMBUS\\1'"))
	p.await("/metrics", 200, `directx_config_reloads_total{result="applied"} 2`)
	if strings.Count(p.log.String(), "level=error") != 2 {
		t.Errorf("want two errors: %s", p.log)
	}
	stop()
	// The files of the policy in force are unchanged, but that of the flag does not exist yet.
	p.start("--inventory", filepath.Join(p.dir, "later.yaml"))
	p.await("/metrics", 200, `directx_replicas{gpu="VMBUS\\1"`, "directx_config_last_reload_successful 0")
	p.write(filepath.Join(p.dir, "later.yaml"), inventoryText)
	p.await("/metrics", 200, replicas("3"), "directx_config_last_reload_successful 1")
	runs := strings.Count(p.log.String(), "Device assignment")
	p.configure("replicas: 3\nlog: {format: json}")
	p.await("/metrics", 200, `directx_config_reloads_total{result="applied"} 2`)
	if log := p.log.String(); !strings.Contains(log, "{") || strings.Count(log, "Device assignment") != runs {
		t.Errorf("the log has the old format, or the resources are registered again: %s", log)
	}
}

// TestFailureOfTheStop: what remains on the node when the program ends is an error.
func TestFailureOfTheStop(t *testing.T) {
	t.Parallel()
	p := newProgram(t)
	labels := filepath.Join(p.dir, "labels")
	p.stopError = "remove " + labels
	stop := p.start("--labels-file", labels)
	p.await("/readyz", 503, "the kubelet does not watch")
	testutil.Eventually(t, "labels", func() bool { return os.Remove(labels) == nil })
	testutil.WriteFile(t, filepath.Join(labels, "file"), "", 0o600)
	stop()
}

// TestRecordsAreRemoved: the program recovers.
func TestRecordsAreRemoved(t *testing.T) {
	t.Parallel()
	p := newProgram(t)
	records := filepath.Join(p.stateDir, "allocations")
	p.start()
	p.await("/readyz", 503, "the kubelet does not watch")
	testutil.NoError(t, os.RemoveAll(records)) // The next refresh begins a new run.
	testutil.Eventually(t, "the directory", func() bool { _, err := os.Stat(filepath.Join(records, ".lock")); return err == nil })
	p.await("/readyz", 503, "the kubelet does not watch")
}

// TestFirstConfigurationIsInvalid: nothing is advertised until it is corrected.
func TestFirstConfigurationIsInvalid(t *testing.T) {
	t.Parallel()
	p := newProgram(t)
	p.configure("replicas: none")
	p.start()
	p.await("/metrics", 200, "directx_config_last_reload_successful 0")
	p.await("/healthz", 200, "ok")
	p.await("/readyz", 503, "config.yaml: replicas: ")
	if left, err := filepath.Glob(filepath.Join(p.dir, "*.sock")); err != nil || len(left) > 0 {
		t.Errorf("resources are advertised: %v, %v", left, err)
	}
	p.configure("replicas: 1")
	p.await("/metrics", 200, `directx_replicas{gpu="VMBUS\\0"`, "directx_config_last_reload_successful 1")
}

func TestErrorsAtTheStart(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"replicas":  {[]string{"--replicas=0"}, "replicas: "},
		"no number": {[]string{"--replicas=many"}, "--replicas"},
		"no GPU":    {[]string{"--fail-on-init-error", "--node-os=windows"}, "no GPU for any resource on this node, and failOnInitError"},
		"node OS":   {[]string{"--node-os=plan9"}, "--node-os"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newProgram(t)
			command := newCommand()
			command.SetArgs(append([]string{"--config", p.configFile, "--inventory", p.inventory, "--state-dir", p.stateDir, "--kubelet-dir", p.dir}, test.args...))
			command.SilenceErrors, command.SilenceUsage = true, true
			command.SetErr(io.Discard)
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			testutil.CheckError(t, "run", command.ExecuteContext(ctx), test.want)
		})
	}
}
