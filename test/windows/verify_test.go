//go:build e2e && windows

package windows

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/test/windows/bed"
)

// testVerify is part of TestDiscovery: nodes share one Windows, which supplies two driver
// files itself here.
func testVerify(t *testing.T) {
	const byPath = "assignmentMode: location-path\n"
	n := start(t, bed.Options{Name: "verify", Settings: byPath + "driverFiles: mount\n"})
	machine.SetBuild(t, 26100)
	machine.SetOwnFiles(t, `System32\nvcuda.dll`, `SysWOW64\nvcuda.dll`)
	if err := n.RunImage(t, "verify-fails", bed.Visible("0")...); err == nil || !strings.Contains(err.Error(), "hcs::CreateComputeSystem") {
		t.Errorf("by default: %v, want the error of HCS", err)
	}
	type result struct {
		Works    bool
		Build    uint32
		Refused  []struct{ Source, Destination string }
		Settings []string
	}
	verify := func(status int, gpu string) (stdout string, r result) {
		t.Helper()
		stdout, _ = n.Dxctl(t, status, "verify", "--gpus", gpu, "--cri-socket", n.Pipe(), "--ctr", n.Path("ctr.exe"),
			"--containerd-namespace", "default", "--image", "localhost/base:1")
		return strings.ToLower(stdout), bed.Decode[result](t, string(bed.ReadFile(t, n.StateDir+`\verify.json`)))
	}
	stdout, r := verify(1, "0")
	var refused []string
	for _, file := range r.Refused {
		refused = append(refused, file.Destination)
	}
	if want := []string{`C:\Windows\System32\nvcuda.dll`, `C:\Windows\SysWOW64\nvcuda.dll`}; r.Works || r.Build != 26100 || len(r.Settings) != 2 || !slices.Equal(refused, want) {
		t.Fatalf("verify reports %+v, want %q", r, want)
	}
	for _, want := range []string{"starts   without a GPU\n", `This node refuses ` + n.GPUs[0].DriverStorePath + `\nvcuda_loader64.dll.`, allocation.InterlockDeviceType, "refused  as configured"} {
		if !strings.Contains(stdout, strings.ToLower(want)) {
			t.Errorf("no %q in\n%s", want, stdout)
		}
	}
	for i, setting := range r.Settings {
		n.WriteSettings(t, byPath+setting)
		id := fmt.Sprintf("verify-setting-%d", i)
		n.MustRunImage(t, id, bed.Visible("0")...)
		n.MustHaveFiles(t, id, n.GPUs[:1], [][]bed.Mapped{nil, {n.GPUs[0].File("nvapi64.dll", `System32\nvapi64.dll`), n.GPUs[0].File(`sub\nvml_loader.dll`, `System32\nvml.dll`)}}[i])
	}
	if stdout, r := verify(0, "1"); !r.Works || len(r.Refused) > 0 {
		t.Errorf("verify reports %+v\n%s", r, stdout)
	}
	if out, err := n.Ctr("containers", "list", "-q"); err != nil || strings.Contains(out, "dxctl-verify") {
		t.Errorf("left behind: %s, %v", out, err)
	}
	if out, err := n.Ctr("snapshots", "list"); err != nil || strings.Contains(out, "dxctl-verify") {
		t.Errorf("left behind: %s, %v", out, err)
	}
}
