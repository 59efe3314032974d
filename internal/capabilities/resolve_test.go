package capabilities

import (
	"errors"
	"strings"
	"testing"

	"directx-nri/internal/policy"
)

func TestResolve(t *testing.T) {
	t.Parallel()
	notAsked := errors.New("must not be queried")
	for name, test := range map[string]struct {
		mode policy.Assignment
		os   string
		caps Capabilities
		err  error
		want policy.Assignment
		says string
	}{
		"location paths":              {mode: policy.AssignByPath, os: "windows", err: notAsked, want: policy.AssignByPath, says: "assignmentMode is location-path"},
		"class":                       {mode: policy.AssignByClass, os: "windows", err: notAsked, want: policy.AssignByClass, says: "all GPUs of the node"},
		"auto, old":                   {mode: policy.AssignAuto, os: "windows", caps: Capabilities{Schemas: []Schema{{2, 1}}}, want: policy.AssignByClass, says: "HCS supports schema 2.1"},
		"auto, new":                   {mode: policy.AssignAuto, os: "windows", caps: Capabilities{Schemas: []Schema{{2, 5}}}, want: policy.AssignByPath, says: "HCS supports schema 2.5"},
		"auto, not Windows":           {mode: policy.AssignAuto, os: "windows", err: errors.ErrUnsupported, want: policy.AssignByPath, says: "could not be queried"},
		"containers of Linux":         {mode: policy.AssignAuto, os: "linux", err: notAsked, want: policy.AssignByPath, says: "device nodes"},
		"containers of Linux, class":  {mode: policy.AssignByClass, os: "linux", err: notAsked, want: policy.AssignByPath, says: "device nodes"},
		"by the build number, old":    {mode: policy.AssignAuto, os: "windows", caps: Capabilities{Windows: build(17763), ByBuild: true}, want: policy.AssignByClass, says: "build 17763"},
		"by the build number, new":    {mode: policy.AssignAuto, os: "windows", caps: Capabilities{Windows: build(26100), ByBuild: true}, want: policy.AssignByPath, says: "build 26100"},
		"nothing is said of the mode": {os: "windows", caps: Capabilities{Schemas: []Schema{{2, 5}}}, want: policy.AssignByPath, says: "HCS supports"},
	} {
		asked := 0
		got := Resolve(test.mode, test.os, func() (Capabilities, error) { asked++; return test.caps, test.err })
		if got.Mode() != test.want || !strings.Contains(got.Reason, test.says) || strings.Contains(got.Reason, "\n") {
			t.Errorf("%s: %+v, want %s and %q", name, got, test.want, test.says)
		}
		if errors.Is(test.err, notAsked) && asked > 0 {
			t.Errorf("%s: Windows was asked", name)
		}
	}
}

// The build number decides only where it leaves no doubt, and then says no more
// than that.
func TestDecides(t *testing.T) {
	t.Parallel()
	for number, want := range map[uint32]bool{17763: true, 17134: true, 18362: false, 19041: false, 20347: false, 20348: true, 26100: true} {
		if got := decides(number); got != want {
			t.Errorf("build %d: %t", number, got)
		}
	}
	if a := (Capabilities{Windows: build(20348), ByBuild: true}).Assignment(); strings.Contains(a.Reason, "HCS") {
		t.Errorf("the reason mentions HCS, which was not queried: %s", a.Reason)
	}
}
