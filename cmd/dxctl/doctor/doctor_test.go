package doctor

import (
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/directx-nri/directx-nri/cmd/dxctl/containerd/containerdtest"
	"github.com/directx-nri/directx-nri/internal/config"
)

func TestDoctorRefusals(t *testing.T) {
	t.Parallel()
	there := filepath.Join(t.TempDir(), "there.json")
	if err := os.WriteFile(there, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"no time":              {[]string{"--timeout", "0s"}, "is not positive"},
		"a file that is there": {[]string{"--report", there}, "exists"},
	} {
		if out, err := ask(t, NewCommand("1.0"), test.args...); err == nil || !strings.Contains(err.Error(), test.want) || out != "" {
			t.Errorf("%s: %v %s", name, err, out)
		}
	}
	if text, err := os.ReadFile(there); err != nil || string(text) != "mine" {
		t.Errorf("the file is %q, %v", text, err)
	}
}

// emptyNode returns the flags of a node on which there is nothing but what is in
// dir.
func emptyNode(dir string) []string {
	path := func(name string) string { return filepath.Join(dir, name) }
	socket := path("s")
	if runtime.GOOS == "windows" {
		socket = `\\.\pipe\dxctl-doctor-none`
	}
	return []string{
		"--containerd-config", path("config.toml"), "--cri-socket", socket, "--runtime-dir", path("run"),
		"--kubelet-dir", path("kubelet"), "--pod-resources-socket", path("pr.sock"), "--shim-dir", dir, "--timeout", "30s",
	}
}

func TestDoctorOnAnEmptyNode(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	out, err := ask(t, NewCommand("1.0"), append(emptyNode(dir), "--state-dir", filepath.Join(dir, "state"))...)
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
		"config.toml": "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".registry.configs.\"r.example.com\".auth]\n  password = \"HUNTER-password\"\n",
		"config.yaml": "# HUNTER-comment\n" + configHead + "inventory: INVENTORY # HUNTER-line\n",
		"gpus.yaml": "apiVersion: directx.microsoft.com/v1alpha1\nkind: Inventory\ndevices:\n- instanceID: GPU # HUNTER-line\n" +
			"  description: 'api_key=HUNTER-key https://u:HUNTER/url@example.com/x?sig=HUNTER-sig Bearer HUNTER-bearer'\n  display: true\n  locationPath: PCIROOT(0)#PCI(1B00)\n",
		"state/shim.log":    "level=error msg=\"password=\\\"HUNTER-quoted words\\\"\" token " + token + "\nlevel=info msg=well container=abc\n",
		"state/verify.json": `{"works": true, "reason": "https://u:HUNTER-verify@example.com refused"}`,
	}
	for name, invalid := range map[string]map[string]string{
		"valid":      {},
		"containerd": {"config.toml": "version = 2\npassword = HUNTER-bare\n"},
		"config":     {"config.yaml": configHead + "shim: HUNTER-scalar\nHUNTER-key: HUNTER-value\n"},
		"inventory":  {"gpus.yaml": "apiVersion: directx.microsoft.com/v1alpha1\nkind: Inventory\nHUNTER-key: HUNTER-value\n"},
		"policy":     {"state/policy.json": `{"format": 1, "HUNTER": "HUNTER"`},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			state := filepath.Join(dir, "state")
			write := func(files map[string]string) {
				for file, text := range files {
					text = strings.ReplaceAll(text, "INVENTORY", filepath.Join(dir, "gpus.yaml"))
					if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
						t.Fatal(err)
					}
				}
			}
			if err := os.Mkdir(state, 0o700); err != nil {
				t.Fatal(err)
			}
			write(valid)
			apply(t, filepath.Join(dir, "config.yaml"), state)
			write(invalid)
			file := filepath.Join(dir, "report.json")
			out, err := ask(t, NewCommand("1.0"), append(emptyNode(dir), "--state-dir", state, "--report", file)...)
			if err == nil || !strings.Contains(out, "wrote "+file) {
				t.Fatalf("%v\n%s", err, out)
			}
			report, err := os.ReadFile(file)
			if err != nil || !json.Valid(report) || strings.Contains(string(report), "HUNTER") || strings.Contains(string(report), token) {
				t.Errorf("%v; secrets are in this, or it is no JSON:\n%s", err, report)
			}
			for _, want := range []string{`"doctor"`, `"findings"`, `"PCIROOT(0)#PCI(1B00)"`, "msg=well container=abc", `"resources"`, `"works": true`} {
				if !strings.Contains(string(report), want) && (name == "valid" || want == `"doctor"`) {
					t.Errorf("no %s in\n%s", want, report)
				}
			}
		})
	}
}

// TestCheckAdvertiser queries the address of the metrics, which may have no host.
func TestCheckAdvertiser(t *testing.T) {
	t.Parallel()
	n := gatherer{timeout: 10 * time.Second}
	for name, test := range map[string]struct {
		status int
		err    string
	}{
		"ready":           {http.StatusOK, ""},
		"not ready":       {http.StatusServiceUnavailable, "directx-advertiser is not ready: the kubelet does not watch a"},
		"another program": {http.StatusNotFound, ""},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/readyz" {
				w.WriteHeader(test.status)
			}
			_, _ = io.WriteString(w, "the kubelet does not watch a\n")
		}))
		_, port, _ := net.SplitHostPort(server.Listener.Addr().String())
		for _, address := range []string{server.Listener.Addr().String(), ":" + port, "0.0.0.0:" + port} {
			if err := n.checkAdvertiser(t.Context(), address); (err != nil) != (test.err != "") || err != nil && err.Error() != test.err {
				t.Errorf("%s at %s: %v", name, address, err)
			}
		}
		server.Close()
		if err := n.checkAdvertiser(t.Context(), server.Listener.Addr().String()); err != nil {
			t.Errorf("it does not run: %v", err)
		}
	}
	if err := n.checkAdvertiser(t.Context(), ""); err != nil {
		t.Errorf("without metrics: %v", err)
	}
}

const configHead = "apiVersion: " + config.APIVersion + "\nkind: " + config.Kind + "\n"

// apply makes a configuration the node policy in force.
func apply(t *testing.T, file, stateDir string) {
	t.Helper()
	p, devices, err := config.Compiler{File: file, StateDir: stateDir, NodeOS: runtime.GOOS, Required: true}.Compile()
	if err := errors.Join(err, config.Install(stateDir, p, devices)); err != nil {
		t.Fatal(err)
	}
}

// ask runs a command and returns what it printed.
func ask(t *testing.T, command *cobra.Command, args ...string) (output string, err error) {
	t.Helper()
	stdout, stderr, err := containerdtest.Run(t, command, args...)
	return stdout + stderr, err
}
