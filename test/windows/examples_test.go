//go:build e2e && linux

package windows

import (
	"strings"
	"testing"

	"directx-nri/test/windows/bed"
)

// testExamples runs the programs of deployments/examples. Wine has DXCore's double,
// no driver of NVIDIA, and an OpenCL loader without a driver, unless this machine
// has one.
func testExamples(t *testing.T) {
	run := wine.Examples(t)
	plugT4(t, 2)
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
	wine.Plug(t, bed.Hardware{})
	for _, test := range []struct {
		program string
		args    []string
		want    string
	}{
		{"adapters", nil, "error: no GPU: "},
		{"cuda", []string{"pi"}, "error: cannot load nvcuda.dll (error 126)"},
		{"cuda", []string{"tau"}, "error: usage: cuda.exe [pi]"},
		{"opencl", []string{"tau"}, "error: usage: opencl.exe [pi]"},
	} {
		if _, err := run(test.program, test.args...); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s %v: %v, want %q", test.program, test.args, err, test.want)
		}
	}
	out, err = run("opencl", "pi")
	if err != nil && !strings.Contains(err.Error(), "error: OpenCL") || err == nil && !strings.HasSuffix(strings.TrimSpace(out), "passed") {
		t.Errorf("opencl pi: %v, %s", err, out)
	}
}
