package capabilities

import (
	"runtime"
	"strings"
	"testing"

	"directx-nri/internal/policy"
)

func TestQuery(t *testing.T) {
	t.Parallel()
	got := Query()
	if (Build() != 0) != (runtime.GOOS == "windows") || got.Windows.Build != Build() {
		t.Errorf("%+v", got)
	}
}

func TestResolve(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		mode  policy.Assignment
		os    string
		build uint32
		want  policy.Assignment
		says  string
	}{
		"location paths":             {policy.AssignByPath, "windows", 17763, policy.AssignByPath, "assignmentMode is location-path"},
		"class":                      {policy.AssignByClass, "windows", 20348, policy.AssignByClass, "all GPUs of the node"},
		"auto, old":                  {policy.AssignAuto, "windows", 20347, policy.AssignByClass, "build 20347 cannot"},
		"auto, new":                  {policy.AssignAuto, "windows", 20348, policy.AssignByPath, "build 20348 assigns"},
		"auto, not Windows":          {policy.AssignAuto, "windows", 0, policy.AssignByPath, "not Windows"},
		"containers of Linux":        {policy.AssignAuto, "linux", 0, policy.AssignByPath, "device nodes"},
		"containers of Linux, class": {policy.AssignByClass, "linux", 0, policy.AssignByPath, "device nodes"},
	} {
		got := Resolve(test.mode, test.os, test.build)
		if got.Mode != test.want || got.ByClass() != (test.want == policy.AssignByClass) || !strings.Contains(got.Reason, test.says) {
			t.Errorf("%s: %+v, want %s and %q", name, got, test.want, test.says)
		}
	}
}
