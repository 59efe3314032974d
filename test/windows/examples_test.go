//go:build e2e && windows

package windows

import (
	"strings"
	"testing"
)

// testExamples runs the programs of deployments/examples. Wine has the double of DXCore,
// no driver of NVIDIA, and an OpenCL loader without a driver unless this machine has one.
func testExamples(t *testing.T) {
	run := func(name string, args ...string) (string, error) {
		return machine.Run(machine.Executable("examples", name+".exe"), args...)
	}
	machine.Plug(t, t4s(2)...)
	out, err := run("adapters")
	if err != nil {
		t.Errorf("adapters: %v", err)
	}
	for _, line := range []string{
		"DIRECTX_DEVICES: not set", "adapter 1: ", "  LUID: 0x00000000_0x006B8B86", "  kind: display", "  dedicated memory: 15360 MiB", "2 adapter(s)",
	} {
		if !strings.Contains(out, line) {
			t.Errorf("adapters does not print %q: %s", line, out)
		}
	}
	machine.Plug(t)
	for _, test := range [][]string{
		{"error: no GPU: ", "adapters"},
		{"error: cannot load nvcuda.dll (error 126)", "cuda", "pi"},
		{"error: usage: opencl.exe [pi]", "opencl", "tau"},
	} {
		if _, err := run(test[1], test[2:]...); err == nil || !strings.Contains(err.Error(), test[0]) {
			t.Errorf("%v: %v, want %q", test[1:], err, test[0])
		}
	}
	apis := func() (string, error) {
		return machine.Run("cmd.exe", "/c", machine.Executable("examples", "apis.cmd"), "2>&1")
	}
	for out, err = apis(); machine.Doubled && strings.Contains(out, "Internal error."); out, err = apis() {
		t.Logf("Wine lost a process: %s", out)
	}
	for _, name := range []string{"Direct3D 12", "Vulkan", "CUDA", "video encoders"} {
		if err != nil || !strings.Contains(out, "=== "+name+": no, status 1") {
			t.Errorf("apis: %v: %s", err, out)
		}
	}
	out, err = run("opencl", "pi")
	if err != nil && !strings.Contains(err.Error(), "error: OpenCL") || err == nil && !strings.HasSuffix(strings.TrimSpace(out), "passed") {
		t.Errorf("opencl: %v\n%s", err, out)
	}
}
