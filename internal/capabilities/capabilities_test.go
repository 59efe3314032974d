package capabilities

import (
	"runtime"
	"strings"
	"testing"

	"github.com/directx-nri/directx-nri/internal/policy"
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
		got := Resolve(policy.Policy{Assignment: test.mode}, test.os, test.build)
		if got.Assignment != test.want || got.InForce(policy.Default()).Assignment != test.want || !strings.Contains(got.Reason, test.says) {
			t.Errorf("%s: %+v, want %s and %q", name, got, test.want, test.says)
		}
	}
}

func TestResolveDriverFiles(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		mode  policy.DriverFiles
		os    string
		build uint32
		want  policy.DriverFiles
		says  string
	}{
		"mount":                     {policy.FilesMount, "windows", 26100, policy.FilesMount, "driverFiles is mount"},
		"none":                      {policy.FilesNone, "windows", 20348, policy.FilesNone, "driverFiles is none"},
		"auto, Windows Server 2022": {policy.FilesAuto, "windows", 20348, policy.FilesMount, "build 20348 does not"},
		"auto, one before":          {policy.FilesAuto, "windows", 26099, policy.FilesMount, "since 26100"},
		"auto, Windows Server 2025": {policy.FilesAuto, "windows", 26100, policy.FilesNone, "build 26100 supplies"},
		"auto, not Windows":         {policy.FilesAuto, "windows", 0, policy.FilesMount, "not Windows"},
		"containers of Linux":       {policy.FilesNone, "linux", 0, policy.FilesMount, "Linux containers"},
	} {
		got := Resolve(policy.Policy{DriverFiles: test.mode}, test.os, test.build)
		if got.DriverFiles != test.want || got.InForce(policy.Default()).DriverFiles != test.want || !strings.Contains(got.DriverFilesReason, test.says) {
			t.Errorf("%s: %+v, want %s and %q", name, got, test.want, test.says)
		}
	}
}
