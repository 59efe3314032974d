package main

import (
	"bytes"
	"encoding/json"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/directx-nri/directx-nri/advertiser/config"
	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/cli"
	"github.com/directx-nri/directx-nri/internal/cri"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/internal/win32"
	"github.com/directx-nri/directx-nri/ocispec/modes"
)

// Commands fail, and print nothing, if they are called incorrectly or the policy cannot be read:
// the defaults are not in force then.
func TestRefusals(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, file := range []string{policy.Path(dir), filepath.Join(dir, "report.json")} {
		testutil.WriteFile(t, file, "{", 0o600)
	}
	for want, args := range map[string][]string{
		"is not positive":                      {"doctor", "--timeout", "0s"},
		"report.json exists":                   {"doctor", "--report", filepath.Join(dir, "report.json")},
		"read node policy " + policy.Path(dir): {"capabilities", "--state-dir", dir},
	} {
		out, err := runCLI(t, args...)
		testutil.CheckError(t, strings.Join(args, " "), err, want)
		if out != "" {
			t.Errorf("%s: output %q", want, out)
		}
	}
	if text, err := os.ReadFile(filepath.Join(dir, "report.json")); err != nil || string(text) != "{" {
		t.Errorf("the file is %q, %v", text, err)
	}
}

// doctor returns 'dxctl doctor' with the flags of a node on which there is nothing but what is in dir.
func doctor(dir string) []string {
	path := func(name string) string { return filepath.Join(dir, name) }
	socket := path("s")
	if runtime.GOOS == "windows" {
		socket = `\\.\pipe\dxctl-doctor-none`
	}
	return []string{
		"doctor", "--cri-socket", socket, "--runtime-dir", path("run"),
		"--kubelet-dir", path("kubelet"), "--pod-resources-socket", path("pr.sock"), "--shim-dir", dir, "--timeout", "30s",
	}
}

func TestDoctorOnAnEmptyNode(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	out, err := runCLI(t, append(doctor(dir), "--state-dir", filepath.Join(dir, "state"))...)
	if err == nil || !strings.Contains(out, "a standalone node that is not set up") || !strings.Contains(out, "containerd does not answer") {
		t.Errorf("%v\n%s", err, out)
	}
	entries, readErr := os.ReadDir(dir)
	if readErr != nil || len(entries) > 0 {
		t.Errorf("it left %v, %v", entries, readErr)
	}
}

// TestReportHasNoSecret puts a secret into every file that is read, valid or
// not, and searches the report for it.
func TestReportHasNoSecret(t *testing.T) {
	const token = "0123456789abcdef0123456789abcdef"
	valid := map[string]string{
		"config.yaml": "# HUNTER-comment\n" + configHead + "inventory: INVENTORY # HUNTER-line\n",
		"gpus.yaml": "apiVersion: directx.microsoft.com/v1alpha1\nkind: Inventory\ndevices:\n- instanceID: GPU # HUNTER-line\n" +
			"  description: 'api_key=HUNTER-key https://u:HUNTER/url@example.com/x?sig=HUNTER-sig Bearer HUNTER-bearer'\n  display: true\n  locationPath: PCIROOT(0)#PCI(1B00)\n",
		"state/shim.log":    "level=error msg=\"password=\\\"HUNTER-quoted words\\\"\" token " + token + "\nlevel=info msg=well container=abc\n",
		"state/verify.json": `{"works": true, "reason": "https://u:HUNTER-verify@example.com refused"}`,
	}
	for name, invalid := range map[string]map[string]string{
		"valid":     {},
		"config":    {"config.yaml": configHead + "shim: HUNTER-scalar\nHUNTER-key: HUNTER-value\n"},
		"inventory": {"gpus.yaml": "apiVersion: directx.microsoft.com/v1alpha1\nkind: Inventory\nHUNTER-key: HUNTER-value\n"},
		"policy":    {"state/policy.json": `{"format": 1, "HUNTER": "HUNTER"`},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			state := filepath.Join(dir, "state")
			write := func(files map[string]string) {
				for file, text := range files {
					text = strings.ReplaceAll(text, "INVENTORY", filepath.Join(dir, "gpus.yaml"))
					testutil.WriteFile(t, filepath.Join(dir, file), text, 0o600)
				}
			}
			write(valid)
			apply(t, filepath.Join(dir, "config.yaml"), state)
			write(invalid)
			file := filepath.Join(dir, "report.json")
			out, err := runCLI(t, append(doctor(dir), "--state-dir", state, "--report", file)...)
			if err == nil || !strings.Contains(out, "wrote "+file) {
				t.Fatalf("%v\n%s", err, out)
			}
			report, err := os.ReadFile(file)
			testutil.NoError(t, err)
			if !json.Valid(report) {
				t.Errorf("no JSON:\n%s", report)
			}
			if strings.Contains(string(report), "HUNTER") || strings.Contains(string(report), token) {
				t.Errorf("secrets are in\n%s", report)
			}
			for _, want := range []string{`"doctor"`, `"findings"`, `"PCIROOT(0)#PCI(1B00)"`, "msg=well container=abc", `"resources"`, `"works": true`} {
				if !strings.Contains(string(report), want) && (len(invalid) == 0 || want == `"doctor"`) {
					t.Errorf("no %s in\n%s", want, report)
				}
			}
		})
	}
}

func TestWithoutQuotes(t *testing.T) {
	t.Parallel()
	const text = "line 3: cannot unmarshal !!str `hunter2` into x; \"hunter3\" 'hunter4'; field hunter5 not found in type y; key \"hunter6\" already set"
	r := doctorReport{Findings: []finding{{Problem: text}}}
	if got := r.withoutQuotes().Findings[0].Problem; strings.Contains(got, "hunter") || !strings.Contains(got, "line 3") {
		t.Error(got)
	}
	if r.Findings[0].Problem != text {
		t.Error("the original report has changed")
	}
}

// TestCheckAdvertiser: an advertiser that answers at the address of its metrics, which may have no
// host, need not have sockets in the kubelet's directory.
func TestCheckAdvertiser(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	n := gatherer{timeout: 10 * time.Second, kubeletDir: dir, podResources: filepath.Join(dir, "none")}
	check := func(name, address string, answers bool, ready string) {
		p := policy.Default()
		p.Metrics.Address = address
		k := n.readKubelet(t.Context(), p)
		if testutil.CheckError(t, name+" at "+address, k.ReadyErr, ready); (k.AdvertiserErr == nil) != answers {
			t.Errorf("%s at %s: %v", name, address, k.AdvertiserErr)
		}
	}
	check("without metrics", "", false, "")
	for name, test := range map[string]struct {
		status      int
		body, ready string
	}{
		"ready":           {http.StatusOK, "ok\n", ""},
		"not ready":       {http.StatusServiceUnavailable, "the node is not set up\n", "directx-advertiser is not ready: the node is not set up"},
		"another program": {http.StatusOK, "<html>", ""},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/readyz" {
				w.WriteHeader(test.status)
			}
			_, _ = io.WriteString(w, test.body)
		}))
		_, port, _ := net.SplitHostPort(server.Listener.Addr().String())
		for _, address := range []string{server.Listener.Addr().String(), ":" + port, "0.0.0.0:" + port} {
			check(name, address, name != "another program", test.ready)
		}
		server.Close()
		check("it does not run", server.Listener.Addr().String(), false, "")
	}
}

// TestPrintState checks that errors are printed as text, and handlers and the assignment mode as they are.
func TestPrintState(t *testing.T) {
	t.Parallel()
	config := cri.Config{Version: "v1.7.35", Handlers: []cri.Handler{{Name: "usable", RuntimeType: "io.containerd.runhcs.v1"}, {Name: "other"}}}
	f := nodeState{
		OS: "windows", Config: configState{Policy: policy.Default()}, Windows: &windowsState{Version: win32.Version{Build: 17763}, HCSErr: fs.ErrClosed, HCSSchemas: []string{"1.0", "2.1"}},
		Containerd: newContainerdState("pipe", "windows", config),
		Shim:       shimState{Path: "none", Err: fs.ErrNotExist, BypassErr: fs.ErrInvalid}, Modes: modes.Resolve(policy.Default(), "windows", 17763),
	}
	f.makeErrorsMarshalable()
	var out bytes.Buffer
	testutil.NoError(t, cli.PrintDocument(&out, cli.YAML, f))
	for _, want := range []string{
		"error: file does not exist", "hcsError: file already closed", "bypass: invalid argument", "hcsSchemas:", "- \"2.1\"", "assignment: class-guid",
		"Windows build 17763 cannot", "driverFiles: mount", "driverFilesReason: Windows build 17763", "usable: \"\"", "other: runtime handler other has",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
}

func TestReadWSL(t *testing.T) {
	t.Parallel()
	for kernel, want := range map[string]*wslState{
		"6.6.87.2-microsoft-standard-WSL2\n": {Kernel: "6.6.87.2-microsoft-standard-WSL2", Libraries: true},
		"6.1.0-39-amd64\n":                   nil,
	} {
		root := t.TempDir()
		testutil.WriteFile(t, filepath.Join(root, "proc/sys/kernel/osrelease"), kernel, 0o600)
		testutil.WriteFile(t, filepath.Join(root, "usr/lib/wsl/lib/libdxcore.so"), "", 0o600)
		if diff := cmp.Diff(want, readWSL(root)); diff != "" {
			t.Errorf("%s:\n%s", kernel, diff)
		}
	}
}

// A GPU needs no location path if the policy assigns GPUs by class. Driver files that do not exist
// are missing.
func TestGPUs(t *testing.T) {
	t.Parallel()
	n := gatherer{nodeOS: "windows", stateDir: filepath.Join(t.TempDir(), "state")}
	p := policy.Default()
	p.UseInventory, p.Assignment, p.DriverFiles = true, policy.AssignByClass, policy.FilesMount
	device := discovery.Device{
		InstanceID: "A", SupportsDisplay: true,
		DriverStorePath: `C:\none`, System32: []discovery.RuntimeFile{{Source: "gone.dll", Destination: "gone.dll"}},
	}
	testutil.NoError(t, config.Install(n.stateDir, config.Compiled{Policy: p, Devices: []discovery.Device{device}}))
	list, err := n.readGPUs(t.Context(), n.readPolicy())
	if err != nil || len(list) != 1 || !list[0].Health.OK() || list[0].Err != nil {
		t.Fatalf("%+v %v", list, err)
	}
	if want := []string{`C:\none\gone.dll`}; !slices.Equal(list[0].Missing, want) {
		t.Errorf("the missing files are %q, want %q", list[0].Missing, want)
	}
}

// apply makes a configuration the node policy in force.
func apply(t *testing.T, file, stateDir string) {
	t.Helper()
	compiled, err := config.Compiler{File: file, StateDir: stateDir, NodeOS: runtime.GOOS, Required: true}.Compile()
	testutil.NoError(t, err, config.Install(stateDir, compiled))
}

func TestReadWindows(t *testing.T) {
	t.Parallel()
	if got := readWindows(); (got.Version.Build != 0) != (runtime.GOOS == "windows") || got.Version.Build != win32.WindowsBuild() {
		t.Errorf("%+v", got)
	}
}

func TestSchemas(t *testing.T) {
	t.Parallel()
	for properties, want := range map[string][]string{
		`{"Properties":[{"SupportedSchemaVersions":[{"Major":1,"Minor":0},{"Major":2,"Minor":5}]}]}`: {"1.0", "2.5"},
		`{"Properties":[{"SupportedSchemaVersions":[{"Major":2}]},{"Memory":1}]}`:                    {"2.0"}, // hcsshim omits 0.
		`{"Properties":[]}`: nil, `{"Properties":1}`: nil, "": nil,
	} {
		if got := schemas(properties); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", properties, got, want)
		}
	}
}
