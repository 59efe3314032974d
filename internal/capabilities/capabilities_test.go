package capabilities

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"directx-nri/internal/policy"
	"directx-nri/internal/win32"
)

func TestSchemasOfAnAnswer(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		answer string
		want   []Schema
		says   string
	}{
		"Windows Server 2019": {`{"Properties":[{"SupportedSchemaVersions":[{"Major":1,"Minor":0},{"Major":2,"Minor":1}]}]}`, []Schema{{1, 0}, {2, 1}}, ""},
		"other properties":    {`{"Properties":[{"CpuGroups":[]},{"SupportedSchemaVersions":[{"Major":2,"Minor":5}],"Build":"x"}],"New":1}`, []Schema{{2, 5}}, ""},
		"no version":          {`{"Properties":[{"SupportedSchemaVersions":[]}]}`, nil, "no schema version"},
		"no property":         {`{}`, nil, "no schema version"},
		"null":                {`null`, nil, "no schema version"},
		"negative":            {`{"Properties":[{"SupportedSchemaVersions":[{"Major":-1,"Minor":0}]}]}`, nil, "parse the answer"},
		"another type":        {`{"Properties":["x"]}`, nil, "parse the answer"},
		"cut short":           {`{"Properties":[`, nil, "parse the answer"},
		"nothing":             {``, nil, "parse the answer"},
	} {
		got, err := ParseSchemas(test.answer)
		if !slices.Equal(got, test.want) || (err == nil) != (test.says == "") || err != nil && !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: %v, %v, want %v and an error that says %q", name, got, err, test.want, test.says)
		}
	}
}

func TestAssignment(t *testing.T) {
	t.Parallel()
	silent := fmt.Errorf("this Windows has no\nHcsGetServiceProperties: %w", errors.ErrUnsupported)
	for name, test := range map[string]struct {
		Capabilities
		individual bool
		says       string
	}{
		"Windows Server 2019":           {Capabilities{Windows: build(17763), Schemas: []Schema{{1, 0}, {2, 1}}}, false, "supports schema 2.1, and single devices require 2.2"},
		"just new enough":               {Capabilities{Windows: build(20348), Schemas: []Schema{{1, 0}, {2, 2}}}, true, "supports schema 2.2"},
		"the newest is not the last":    {Capabilities{Windows: build(20348), Schemas: []Schema{{2, 10}, {2, 2}, {1, 0}}}, true, "supports schema 2.10"},
		"a new major version":           {Capabilities{Windows: build(30000), Schemas: []Schema{{2, 1}, {3, 0}}}, true, "supports schema 3.0"},
		"a large minor of an old major": {Capabilities{Windows: build(17763), Schemas: []Schema{{1, 9}}}, false, "supports schema 1.9"},
		"HCS is silent on a new build":  {Capabilities{Windows: build(20348), SchemasErr: silent}, true, "Windows build 20348 assigns single devices"},
		"HCS is silent on an old build": {Capabilities{Windows: build(17763), SchemasErr: silent}, false, "HCS did not report its schemas (this Windows has no HcsGetServiceProperties: unsupported operation)"},
		"HCS names none":                {Capabilities{Windows: build(17763)}, false, "HCS did not report its schemas (no schema version)"},
	} {
		got := test.Assignment()
		if got.Individual != test.individual || !strings.Contains(got.Reason, test.says) || strings.Contains(got.Reason, "\n") {
			t.Errorf("%s: %+v, want %t and %q", name, got, test.individual, test.says)
		}
	}
}

func build(n uint32) win32.Version { return win32.Version{Major: 10, Build: n} }

func TestAsk(t *testing.T) {
	t.Parallel()
	got, err := Ask()
	if runtime.GOOS != "windows" {
		if !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("%v, want errors.ErrUnsupported", err)
		}
		return
	}
	if err != nil || got.Windows.Build == 0 || got.SchemasErr == nil && len(got.Schemas) == 0 {
		t.Errorf("%+v, %v", got, err)
	}
	t.Logf("%s: %+v", got.Windows, got.Assignment())
}

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
