//go:build e2e && windows

package windows

import (
	"fmt"
	"strings"
	"testing"

	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/paths"
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
	verify := func(status int, gpu string) (stdout string) {
		t.Helper()
		stdout, _ = n.Dxctl(t, status, "verify", "--gpus", gpu, "--cri-socket", n.Pipe(), "--ctr", n.Path("ctr.exe"),
			"--containerd-namespace", "default", "--image", "localhost/base:1")
		report := string(bed.ReadFile(t, n.StateDir+`\`+paths.VerifyFile))
		if !strings.Contains(report, " on windows 26100 ") || !strings.Contains(report, stdout) {
			t.Errorf("the report is\n%s", report)
		}
		return strings.ToLower(stdout)
	}
	stdout := verify(1, "0")
	for _, want := range []string{
		"starts   without a GPU\n", allocation.InterlockDeviceType, "refused  as configured",
		`This node refuses ` + n.GPUs[0].DriverStorePath + `\nvcuda_loader64.dll.`, `This node refuses ` + n.GPUs[0].DriverStorePath + `\nvcuda_loader32.dll.`,
	} {
		if !strings.Contains(stdout, strings.ToLower(want)) {
			t.Errorf("no %q in\n%s", want, stdout)
		}
	}
	if count := strings.Count(stdout, "this node refuses"); count != 2 {
		t.Errorf("%d files are refused:\n%s", count, stdout)
	}
	for i, setting := range []string{"driverFiles: none\n", "driverFiles: mount\nruntimeFiles: {nvidia: {remove: [nvcuda_loader64.dll, nvcuda_loader32.dll]}}\n"} {
		n.WriteSettings(t, byPath+setting)
		id := fmt.Sprintf("verify-setting-%d", i)
		n.MustRunImage(t, id, bed.Visible("0")...)
		n.MustHaveFiles(t, id, n.GPUs[:1], [][]bed.Mapped{nil, {n.GPUs[0].File("nvapi64.dll", `System32\nvapi64.dll`), n.GPUs[0].File(`sub\nvml_loader.dll`, `System32\nvml.dll`)}}[i])
		verify(0, "0")
	}
	verify(0, "1")
	if out, err := n.Ctr("containers", "list", "-q"); err != nil || strings.Contains(out, "dxctl-verify") {
		t.Errorf("left behind: %s, %v", out, err)
	}
	if out, err := n.Ctr("snapshots", "list"); err != nil || strings.Contains(out, "dxctl-verify") {
		t.Errorf("left behind: %s, %v", out, err)
	}
}
