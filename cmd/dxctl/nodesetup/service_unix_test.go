//go:build unix

package nodesetup

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/directx-nri/directx-nri/deployments/systemd"
	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/internal/testutil/allocationtest"
)

func TestService(t *testing.T) {
	t.Setenv("PATH", t.TempDir()) // There is no systemctl.
	dir, unitDir := t.TempDir(), t.TempDir()
	for _, name := range []string{"directx-nri", "directx-advertiser"} {
		testutil.WriteFile(t, filepath.Join(dir, name), "", 0o700)
	}
	where := []string{"--unit-dir", unitDir}
	if out, err := serve(t, append([]string{"install", "--directory", dir}, append(where, "--", "--replicas", "4")...)...); err != nil || strings.Count(out, "\n") != 2 {
		t.Fatalf("%v\n%s", err, out)
	}
	for name, want := range map[string]string{"directx-nri": `directx-nri"`, "directx-advertiser": `directx-advertiser" "--replicas" "4"`} {
		unit, err := os.ReadFile(filepath.Join(unitDir, name+".service"))
		if err != nil || !strings.Contains(string(unit), want+"\n") {
			t.Errorf("%v\n%s\nwant %s", err, unit, want)
		}
	}
	uninstall := append([]string{"uninstall", "--cri-socket", filepath.Join(dir, "none"), "--state-dir", holding(t)}, where...)
	if out, err := serve(t, uninstall...); err == nil || !strings.Contains(err.Error(), "add --force") {
		t.Errorf("containers hold GPUs: %v\n%s", err, out)
	}
	if entries, err := os.ReadDir(unitDir); err != nil || len(entries) != 2 {
		t.Errorf("removed although containers hold GPUs: %v, %v", entries, err)
	}
	if out, err := serve(t, append(uninstall, "--force")...); err != nil || !strings.Contains(out, "will not start again") || !strings.Contains(out, "removed the service directx-nri\n") {
		t.Errorf("%v\n%s", err, out)
	}
	if entries, err := os.ReadDir(unitDir); err != nil || len(entries) > 0 {
		t.Errorf("left: %v, %v", entries, err)
	}
	if out, err := serve(t, append(uninstall, "--force")...); err != nil || !strings.Contains(out, "the service directx-nri is not installed\n") {
		t.Errorf("again: %v\n%s", err, out)
	}
	if _, err := serve(t, "install", "--", "x", "--y"); err == nil {
		t.Error("the programs do not exist")
	}
	if _, err := serve(t, "install", "--replicas=3"); err == nil {
		t.Error("a flag of directx-advertiser without -- is accepted")
	}
}

// TestPackagedUnits: the programs in another directory are the only difference.
func TestPackagedUnits(t *testing.T) {
	t.Setenv("PATH", t.TempDir()) // There is no systemctl.
	dir, unitDir := t.TempDir(), t.TempDir()
	for _, name := range []string{"directx-nri", "directx-advertiser", "dxctl"} {
		testutil.WriteFile(t, filepath.Join(dir, name), "", 0o700)
	}
	for _, more := range [][]string{nil, {"--cdi"}} {
		if _, err := serve(t, append([]string{"install", "--directory", dir, "--unit-dir", unitDir}, more...)...); err != nil {
			t.Fatal(err)
		}
	}
	units, err := systemd.Units.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, unit := range units {
		packaged, err := systemd.Units.ReadFile(unit.Name())
		if err != nil {
			t.Fatal(err)
		}
		installed, err := os.ReadFile(filepath.Join(unitDir, unit.Name()))
		_, got, _ := strings.Cut(string(installed), "\n")
		_, want, _ := strings.Cut(string(packaged), "\n")
		if strings.ReplaceAll(got, dir, "/usr/bin") != want || strings.Contains(got, "/usr/bin") {
			t.Errorf("%s: %v\n%s", unit.Name(), err, installed)
		}
	}
	if _, err := serve(t, "uninstall", "--cdi", "--unit-dir", unitDir); err != nil {
		t.Error(err)
	}
	if units, err := os.ReadDir(unitDir); err != nil || len(units) != 2 {
		t.Errorf("%v, %v", units, err)
	}
}

// holding returns a state directory with an allocation that a container holds.
func holding(t *testing.T) (state string) {
	t.Helper()
	state = t.TempDir()
	dir := paths.Allocations(state)
	token := allocationtest.Record(t, dir, "directx.microsoft.com/display", "GPU")
	if err := allocation.OpenStore(dir).Bind(token, allocation.Holder{PodUID: "uid", Container: "main", PodNamespace: "default", PodName: "a"}); err != nil {
		t.Fatal(err)
	}
	return state
}

// serve runs 'dxctl service' and returns what it printed.
func serve(t *testing.T, args ...string) (output string, err error) {
	t.Helper()
	command := NewServiceCommand("linux")
	command.SilenceErrors, command.SilenceUsage = true, true
	var out bytes.Buffer
	command.SetArgs(args)
	command.SetOut(&out)
	command.SetErr(&out)
	err = command.ExecuteContext(t.Context())
	return out.String(), err
}
