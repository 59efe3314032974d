package product

import (
	"runtime/debug"
	"testing"
)

func TestPlatformsAreReadByTheirNames(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"linux-amd64": "linux-amd64", "windows/arm64": "windows-arm64", "linux": "", "plan9-amd64": "", "linux-riscv64": "", "": "",
	} {
		got, err := ParsePlatform(text)
		if err != nil && want != "" || err == nil && got.String() != want {
			t.Errorf("%q is %s (%v), want %q", text, got, err, want)
		}
	}
}

func TestOnlyStaticProgramsForThePlatformAreReleased(t *testing.T) {
	t.Parallel()
	good := map[string]string{
		"GOOS": "linux", "GOARCH": "amd64", "CGO_ENABLED": "0", "-trimpath": "true", "-tags": "x",
		"-buildmode": "exe", "-compiler": "gc", "GOAMD64": "v1", "-gcflags": "",
	}
	for name, c := range map[string]struct {
		key, value string
		ok         bool
	}{
		"as make build makes it":  {"-tags", "x", true},
		"another system":          {"GOOS", "windows", false},
		"another architecture":    {"GOARCH", "arm64", false},
		"needs a C library":       {"CGO_ENABLED", "1", false},
		"has a folder's name in":  {"-trimpath", "false", false},
		"does not say how":        {"GOOS", "", false},
		"does not say if it is C": {"CGO_ENABLED", "", false},
		"needs a newer processor": {"GOAMD64", "v3", false},
		"needs a loader":          {"-buildmode", "pie", false},
		"another build of Go's":   {"-gcflags", "all=-N", false},
	} {
		info := &debug.BuildInfo{}
		for key, value := range good {
			if key == c.key {
				value = c.value
			}
			if value != "" {
				info.Settings = append(info.Settings, debug.BuildSetting{Key: key, Value: value})
			}
		}
		if err := check(info, Platform{OS: "linux", Arch: "amd64"}); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestModulesAreNamedOnceAndByTheirReplacement(t *testing.T) {
	t.Parallel()
	list := Modules([]Binary{
		{Info: &debug.BuildInfo{Deps: []*debug.Module{
			{Path: "b", Version: "v1.0.0"},
			{Path: "a", Version: "v1.0.0", Replace: &debug.Module{Path: "fork/a", Version: "v2.0.0"}},
		}}},
		{Info: &debug.BuildInfo{Deps: []*debug.Module{{Path: "b", Version: "v1.0.0"}}}},
	})
	if len(list) != 2 || list[0].Path != "b" || list[1].Path != "fork/a" {
		t.Errorf("the modules are %v, want b and fork/a", list)
	}
}

func TestMissingProgramIsAnError(t *testing.T) {
	t.Parallel()
	if _, err := Load(t.TempDir(), Platform{OS: "linux", Arch: "amd64"}); err == nil {
		t.Error("no programs were loaded without an error")
	}
}
