package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/directx-nri/directx-nri/advertiser/config"
	"github.com/directx-nri/directx-nri/internal/cri"
	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/testutil"
)

// A check is not performed without another one that has failed, unless the node does not have the part. A check that
// hangs fails.
func TestRunChecks(t *testing.T) {
	t.Parallel()
	results := func(f []finding) func(context.Context, nodeState) []finding {
		return func(context.Context, nodeState) []finding { return f }
	}
	err := errlog.WithRemedy(errors.New("it is\nbroken"), "fix it")
	hang := make(chan struct{})
	defer close(hang)
	got := runChecks(t.Context(), nodeState{}, []check{
		{name: "good", run: results(passed("%d", 1))},
		{name: "bad", run: results(slices.Concat(failed(err, "no"), passed("2"))), needs: []string{"good"}},
		{name: "after", run: results(passed("3")), needs: []string{"good", "bad"}},
		{name: "elsewhere", run: results(nil), needs: []string{"bad"}},
		{name: "hangs", run: func(context.Context, nodeState) []finding { <-hang; return nil }},
	}, 50*time.Millisecond)
	var text strings.Builder
	printFindings(&text, got)
	const want = "✔ good        1\n✘ bad         it is broken; fix it\n✔ bad         2\n! after       not checked without bad\n✘ hangs       no answer within 50ms\n"
	if text.String() != want {
		t.Errorf("got\n%swant\n%s", &text, want)
	}
}

// emptyNode returns the options of a node on which there is nothing but what is in dir.
func emptyNode(dir string) doctorOptions {
	path := func(name string) string { return filepath.Join(dir, name) }
	o := doctorOptions{
		stateDir: path("state"), shimDir: dir, runtimeDir: path("run"), kubeletDir: path("kubelet"), criSocket: path("cri.sock"),
		version: "1.0", cdiFile: path("cdi.yaml"), cdiUnit: path("cdi.service"), timeout: testutil.Timeout,
	}
	if runtime.GOOS == "windows" {
		o.criSocket = `\\.\pipe\dxctl-doctor-none`
	}
	return o
}

func TestDoctorChangesNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var out strings.Builder
	err := emptyNode(dir).run(t.Context(), &out, &out)
	if err == nil || !strings.Contains(out.String(), "✘ containerd  containerd does not answer") {
		t.Errorf("%v\n%s", err, &out)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("it left %v, %v", entries, err)
	}
}

func TestContainerdOfWindows(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	testutil.NoError(t, os.Mkdir(filepath.Join(dir, "kubelet"), 0o700))
	handler := cri.Handler{Name: "runhcs-wcow-process", RuntimeType: "io.containerd.runhcs.v1"}
	for name, test := range map[string]struct {
		version   string
		handler   cri.Handler
		injection policy.Injection
		want      string // "" if it passes
	}{
		"shim":                       {"v1.7.35", handler, policy.InjectAuto, ""},
		"kubelet":                    {"v2.0.4", handler, policy.InjectAuto, ""},
		"it bypasses the shim":       {"v2.0.4", handler, policy.InjectByShim, "runs no shim for the containers of pods; set injection: auto"},
		"no handler is for the GPUs": {"v2.4.2", cri.Handler{Name: "other"}, policy.InjectAuto, "no runtime handler of containerd can have GPUs"},
	} {
		p := policy.Default()
		p.Injection = test.injection
		n := nodeState{doctorOptions: emptyNode(dir), os: "windows", policy: p, containerd: cri.Config{Version: test.version, Handlers: []cri.Handler{test.handler}}}
		f := checkContainerd(t.Context(), n)[0]
		if (f.mark == markPassed) != (test.want == "") || !strings.Contains(f.text, test.want) {
			t.Errorf("%s: %+v", name, f)
		}
		if n.injection() == policy.InjectByKubelet && (checkShim(t.Context(), n) != nil || checkNRI(t.Context(), n) != nil) {
			t.Errorf("%s: the shim or the plugin is checked", name)
		}
	}
}

// apply makes a configuration the node policy in force.
func apply(t *testing.T, file, stateDir string) {
	t.Helper()
	_, err := config.Compiler{File: file, StateDir: stateDir, NodeOS: runtime.GOOS, Required: true}.Apply()
	testutil.NoError(t, err)
}

// TestReportHasNoSecret puts a secret into every file that is read, valid or not, and searches the report for it.
func TestReportHasNoSecret(t *testing.T) {
	t.Parallel()
	const token = "0123456789abcdef0123456789abcdef"
	valid := map[string]string{
		"config.yaml": "# HUNTER-comment\n" + configHead + "inventory: INVENTORY # HUNTER-line\n",
		"gpus.yaml": "apiVersion: directx.microsoft.com/v1alpha1\nkind: Inventory\ndevices:\n- instanceID: GPU # HUNTER-line\n" +
			"  description: 'api_key=HUNTER-key https://u:HUNTER/url@example.com/x?sig=HUNTER-sig Bearer HUNTER-bearer'\n  display: true\n  locationPath: PCIROOT(0)#PCI(1B00)\n",
		"state/shim.log":   "level=error msg=\"password=\\\"HUNTER-quoted words\\\"\" token " + token + "\nlevel=info msg=well container=abc\n",
		"state/verify.txt": "refused  as configured: https://u:HUNTER-verify@example.com refused\n",
	}
	for name, invalid := range map[string]map[string]string{
		"valid":     {},
		"config":    {"config.yaml": configHead + "shim: HUNTER-scalar\nHUNTER-key: HUNTER-value\n"},
		"inventory": {"gpus.yaml": "apiVersion: directx.microsoft.com/v1alpha1\nkind: Inventory\nHUNTER-key: HUNTER-value\n"},
		"policy":    {"state/policy.json": `{"format": 1, "HUNTER": "HUNTER"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			o := emptyNode(dir)
			write := func(files map[string]string) {
				for file, text := range files {
					text = strings.ReplaceAll(text, "INVENTORY", filepath.Join(dir, "gpus.yaml"))
					testutil.WriteFile(t, filepath.Join(dir, file), text, 0o600)
				}
			}
			write(valid)
			apply(t, filepath.Join(dir, "config.yaml"), o.stateDir)
			write(invalid)
			o.report = filepath.Join(dir, "report.txt")
			var out strings.Builder
			if err := o.run(t.Context(), &out, &out); err == nil || !strings.Contains(out.String(), "wrote "+o.report) {
				t.Fatalf("%v\n%s", err, &out)
			}
			text, err := os.ReadFile(o.report)
			info, statErr := os.Stat(o.report)
			testutil.NoError(t, err, statErr)
			if runtime.GOOS != "windows" && info.Mode().Perm() != 0o600 {
				t.Errorf("mode %v", info.Mode())
			}
			report := string(text)
			if strings.Contains(report, "HUNTER") || strings.Contains(report, token) {
				t.Errorf("secrets are in\n%s", report)
			}
			for _, want := range []string{"# dxctl doctor\n", "✔ system", "PCIROOT(0)#PCI(1B00)", "msg=well container=abc", "resources:", "refused  as configured"} {
				if !strings.Contains(report, want) && (want != "PCIROOT(0)#PCI(1B00)" || name != "policy") {
					t.Errorf("no %s in\n%s", want, report)
				}
			}
			testutil.CheckError(t, "again", o.run(t.Context(), &out, &out), "file exists")
		})
	}
}
