package images

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"directx-nri/tools/release/internal/files"
	"directx-nri/tools/release/internal/product"
)

func build() Build {
	return Build{Version: "v0.1.0", Repository: "registry.example/thing", Created: time.Unix(1_700_000_000, 0)}
}

func programs(t *testing.T, platform string) Programs {
	t.Helper()
	parsed, err := product.ParsePlatform(platform)
	if err != nil {
		t.Fatal(err)
	}
	return Programs{
		Platform:  parsed,
		Binaries:  []product.Binary{{Program: "dxctl", File: "dxctl" + parsed.Suffix(), Data: []byte("program")}},
		Documents: []files.File{{Name: SBOMFile, Mode: files.Plain, Data: []byte("{}")}},
	}
}

func TestImageRunsDxctlWhoeverStartsIt(t *testing.T) {
	t.Parallel()
	for platform, want := range map[string]string{
		"linux-amd64": "/dxctl", "linux-arm64": "/dxctl", "windows-amd64": `%CONTAINER_SANDBOX_MOUNT_POINT%\dxctl.exe`,
	} {
		image, err := New(build(), programs(t, platform))
		if err != nil {
			t.Fatal(err)
		}
		if got := image.Config.Entrypoint; !slices.Equal(got, []string{want}) || !slices.Equal(image.Config.Cmd, []string{"--help"}) {
			t.Errorf("%s: the image runs %q %q, want %s --help", platform, got, image.Config.Cmd, want)
		}
		if image.Platform.OSVersion != "" {
			t.Errorf("%s: the image is for the version %s alone", platform, image.Platform.OSVersion)
		}
	}
}

func TestLabelsSayOnlyWhatIsKnown(t *testing.T) {
	t.Parallel()
	bare := build().labels()
	full := build()
	full.Revision, full.Source = "0123", "https://example.com/x"
	for key, want := range map[string]string{
		"org.opencontainers.image.version": "v0.1.0", "org.opencontainers.image.licenses": "Apache-2.0",
		"org.opencontainers.image.created": "2023-11-14T22:13:20Z", "org.opencontainers.image.revision": "", "org.opencontainers.image.source": "",
	} {
		if got := bare[key]; got != want {
			t.Errorf("%s is %q, want %q", key, got, want)
		}
	}
	for key, want := range map[string]string{
		"org.opencontainers.image.revision": "0123", "org.opencontainers.image.source": "https://example.com/x",
		"org.opencontainers.image.documentation": "https://example.com/x#readme",
	} {
		if got := full.labels()[key]; got != want {
			t.Errorf("%s is %q, want %q", key, got, want)
		}
	}
}

func TestOneImageHasNoIndexAndSeveralHave(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ platforms, want []string }{
		{[]string{"linux-amd64"}, []string{"x-linux-amd64.tar"}},
		{[]string{"linux-amd64", "windows-amd64"}, []string{"x-linux-amd64.tar", "x-windows-amd64.tar", "x.tar"}},
	} {
		var all []Programs
		for _, platform := range c.platforms {
			all = append(all, programs(t, platform))
		}
		dir := filepath.Join(t.TempDir(), "out")
		if _, err := Write(dir, "x", build(), all); err != nil {
			t.Fatal(err)
		}
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, entry := range entries {
			got = append(got, entry.Name())
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%q gave %q, want %q", c.platforms, got, c.want)
		}
	}
}

func TestAnIndexOfAnotherBuildGoes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	both := []Programs{programs(t, "linux-amd64"), programs(t, "windows-amd64")}
	for _, all := range [][]Programs{both, both[:1]} {
		if _, err := Write(dir, "x", build(), all); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "x.tar")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the index of the first build is there: %v", err)
	}
}

func TestNamesThatNoImageCanHaveAreRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		repository, version string
		ok                  bool
	}{
		{"docker.io/library/directx-nri", "v0.1.0", true},
		{"registry.example:5000/a/b", "fe06f5c-dirty", true},
		{"registry.example/thing", "v0.1.0+build", false},
		{"registry.example/thing", "release/v1", false},
		{"registry.example/thing", "../../x", false},
		{"registry.example/thing", "a b", false},
		{"registry.example/thing", "", false},
		{"registry.example/Thing", "v0.1.0", false},
		{"registry.example/thing:v1", "v0.1.0", false},
		{"thing", "v0.1.0", false},
		{"", "v0.1.0", false},
	} {
		if err := (Build{Repository: c.repository, Version: c.version}).Check(); (err == nil) != c.ok {
			t.Errorf("%s, %s: %v", c.repository, c.version, err)
		}
	}
}
