//go:build e2e && windows

package windows

import (
	"strings"
	"testing"

	"golang.org/x/sys/windows"

	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/test/windows/bed"
)

// autoSettings are the product's defaults.
const autoSettings = "assignmentMode: auto\ndriverFiles: auto\n"

// testBuilds has containers on several builds of Windows. It is part of TestDiscovery: nodes
// share one Windows.
func testBuilds(t *testing.T) {
	n := start(t, bed.Options{Name: "builds", Settings: autoSettings})
	first, other := n.GPUs[0], n.GPUs[1]
	n.MustRunImage(t, "builds-2022", bed.Visible("0")...)
	n.MustHave(t, "builds-2022", first)

	machine.SetBuild(t, 17763)
	n.MustRunImage(t, "builds-2019", bed.Visible("1")...)
	n.MustHaveClass(t, "builds-2019", bed.FilesOf(other)...)

	machine.SetBuild(t, 26100)
	machine.SetOwnFiles(t, `System32\nvcuda.dll`, `SysWOW64\nvcuda.dll`)
	n.MustRunImage(t, "builds-2025", bed.Visible("all")...)
	n.MustHaveFiles(t, "builds-2025", n.GPUs)
	t.Run("verify", n.testVerify)
}

// testVerify runs dxctl verify on a node whose Windows supplies two driver files itself.
func (n node) testVerify(t *testing.T) {
	const byPath = "assignmentMode: location-path\n"
	n.WriteSettings(t, byPath+"driverFiles: mount\n")
	// On Windows the text is "The parameter is incorrect."
	refusal := "hcs::CreateComputeSystem verify-fails: " + windows.ERROR_INVALID_PARAMETER.Error()
	if err := n.RunImage(t, "verify-fails", bed.Visible("0")...); err == nil || !strings.Contains(err.Error(), refusal) {
		t.Errorf("by default: %v, want the error of HCS", err)
	}
	n.MustLeaveNothing(t, "verify-fails")
	verify := func() (stdout string, err error) {
		t.Helper()
		run := func() {
			stdout, err = n.Dxctl("verify", "--gpus", "0", "--cri-socket", n.Pipe(), "--ctr", n.Path("ctr.exe"),
				"--containerd-namespace", "default", "--image", "localhost/base:1")
		}
		for run(); n.LostProcess(t, err); run() {
			list, _ := n.Ctr("containers", "list", "--quiet")
			for id := range strings.FieldsSeq(list) {
				if strings.HasPrefix(id, "dxctl-verify-") {
					_ = n.Remove(id)
				}
			}
		}
		report := string(bed.ReadFile(t, n.StateDir+`\`+paths.VerifyFile))
		if !strings.Contains(report, " on windows 26100 ") || !strings.Contains(report, stdout) {
			t.Errorf("the report is\n%s", report)
		}
		return strings.ToLower(stdout), err
	}
	refuses := `This node refuses ` + n.GPUs[0].DriverStorePath
	stdout, err := verify()
	for _, want := range []string{
		"starts   without a GPU\n", allocation.InterlockDeviceType, "refused  as configured",
		refuses + `\nvcuda_loader64.dll.`, refuses + `\nvcuda_loader32.dll.`,
	} {
		if !strings.Contains(stdout, strings.ToLower(want)) {
			t.Errorf("no %q in\n%s", want, stdout)
		}
	}
	if count := strings.Count(stdout, "this node refuses"); err == nil || count != 2 {
		t.Errorf("%d files are refused, %v:\n%s", count, err, stdout)
	}
	n.WriteSettings(t, byPath+"driverFiles: mount\nruntimeFiles: {nvidia: {remove: [nvcuda_loader64.dll, nvcuda_loader32.dll]}}\n")
	n.MustRunImage(t, "verify-works", bed.Visible("0")...)
	n.MustHaveFiles(t, "verify-works", n.GPUs[:1], n.GPUs[0].File("nvapi64.dll", `System32\nvapi64.dll`), n.GPUs[0].File(`sub\nvml_loader.dll`, `System32\nvml.dll`))
	if stdout, err := verify(); err != nil {
		t.Errorf("%v:\n%s", err, stdout)
	}
	for _, kind := range []string{"containers", "snapshots"} {
		if out, err := n.Ctr(kind, "list"); err != nil || strings.Contains(out, "dxctl-verify") {
			t.Errorf("left behind: %s, %v", out, err)
		}
	}
}
