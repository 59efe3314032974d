//go:build e2e && windows

package windows

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/directx-nri/directx-nri/cmd/dxctl/doctor"
	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/test/windows/bed"
)

// TestDoctor runs 'dxctl.exe doctor' on a healthy node, except for the limits of Wine,
// and on the same node with faults.
func TestDoctor(t *testing.T) {
	t.Parallel()
	n := start(t, bed.Options{Name: "doctor"})
	// The drivers list files that do not exist.
	always := map[string]string{doctor.CheckDriverFiles: `gone64.dll, `}
	expect := func(state string, checks ...string) {
		t.Helper()
		stdout, _ := n.Dxctl(t, 1, "doctor", "-o", "json", "--timeout", "5m", "--containerd-config", n.Path("containerd.toml"), "--cri-socket", n.Pipe(),
			"--runtime-dir", n.Path("no-such"), "--kubelet-dir", n.Path("kubelet"), "--shim-dir", filepath.Dir(n.Shim()))
		r := bed.Decode[doctor.Report](t, stdout)
		var found []string
		for _, f := range r.Findings {
			if text := always[f.Check]; text == "" || !strings.Contains(f.Problem, text) {
				found = append(found, f.Check)
			}
		}
		slices.Sort(found)
		if !slices.Equal(found, checks) || r.OS != "windows" || r.Role != doctor.RoleStandalone || len(r.Findings) < 1 {
			t.Errorf("%s: %+v; want findings of %v", state, r, checks)
		}
	}
	expect("a healthy node")
	report := n.Path("report.json")
	n.Dxctl(t, 1, "doctor", "--report", report, "--timeout", "5m", "--containerd-config", n.Path("containerd.toml"), "--cri-socket", n.Pipe(), "--shim-dir", filepath.Dir(n.Shim()))
	if text := string(bed.ReadFile(t, report)); !strings.Contains(text, `"findings"`) {
		t.Errorf("no findings:\n%s", text)
	}

	shim := n.Shim()
	bed.Rename(t, shim, shim+".away")
	expect("no shim", doctor.CheckShim)
	bed.Rename(t, shim+".away", shim)

	text := string(bed.ReadFile(t, n.Path("config.yaml")))
	write := func(text string) {
		t.Helper()
		testutil.WriteFile(t, n.Path("config.yaml"), text, 0o600)
	}
	write("unknown: 1\n" + text)
	expect("an invalid configuration", doctor.CheckConfig)
	write(strings.Replace(text, "containerd-shim-plain-v1.exe", "no-such.exe", 1))
	expect("a real shim that is not there", doctor.CheckConfig)
	write(text + "replicas: 3\n")
	expect("a configuration that is not applied", doctor.CheckConfig)
	write(text)
	plain := n.Path("containerd-shim-plain-v1.exe")
	bed.Rename(t, plain, plain+".away")
	expect("no real shim", doctor.CheckShim)
	bed.Rename(t, plain+".away", plain)

	n.Kill()
	expect("containerd is stopped", doctor.CheckContainerd)
	n.Start(t)
	expect("a healthy node again")
}
