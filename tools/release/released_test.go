//go:build e2e

package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"context"
	"debug/buildinfo"
	"debug/elf"
	"debug/pe"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	spdxjson "github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdxlib"

	"directx-nri/tools/release/internal/product"
)

const (
	version = "v0.2.0-rc.1" // not the repository's
	created = "1700000000"
)

// TestRelease makes a whole release twice, in two folders, under two umasks, in two
// time zones and with two sets of Go's settings, compares the two, and looks into
// one.
func TestRelease(t *testing.T) {
	t.Parallel()
	root := repository(t)
	list := output(t, root, "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	names := strings.Split(strings.TrimSuffix(string(list), "\x00"), "\x00")
	one, other := filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "another", "folder")
	copyTo(t, names, root, one)
	copyTo(t, names, one, other) // The first may have changed since.
	first := release(t, one, "022", "TZ=UTC", "LC_ALL=C")
	second := release(t, other, "077", "TZ=Asia/Tokyo", "LC_ALL=C.UTF-8", "GOARM64=v9.0", "GOFLAGS=-gcflags=directx-nri/...=-l")
	if sums, again := read(t, first, "SHA256SUMS"), read(t, second, "SHA256SUMS"); !bytes.Equal(sums, again) {
		t.Errorf("two releases of the same sources differ:\n%s\n%s", sums, again)
	}
	output(t, first, "sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS")

	for _, platform := range []string{"linux-amd64", "linux-arm64", "windows-amd64"} {
		t.Run("image "+platform, func(t *testing.T) {
			t.Parallel()
			index := open(t, filepath.Join(first, "directx-nri-image-"+version+"-"+platform+".tar"))
			checkImage(t, index, entry(t, index), platform)
		})
	}
	t.Run("image of all platforms", func(t *testing.T) {
		t.Parallel()
		outer := open(t, filepath.Join(first, "directx-nri-image-"+version+".tar"))
		index, err := outer.ImageIndex(entry(t, outer).Digest)
		if err != nil {
			t.Fatal(err)
		}
		manifest, err := index.IndexManifest()
		if err != nil {
			t.Fatal(err)
		}
		for i, platform := range []string{"linux-amd64", "linux-arm64", "windows-amd64"} {
			checkImage(t, index, manifest.Manifests[i], platform)
		}
	})
	for _, archive := range []string{"linux-amd64.tar.gz", "linux-arm64.tar.gz", "windows-amd64.zip", "windows-arm64.zip"} {
		t.Run(archive, func(t *testing.T) {
			t.Parallel()
			checkArchive(t, first, archive)
		})
	}
	t.Run("chart", func(t *testing.T) {
		t.Parallel()
		checkChart(t, root, filepath.Join(first, "directx-nri-"+version[1:]+".tgz"))
	})
}

func repository(t *testing.T) string {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return root
}

// parts is where test/parts/build.sh puts folders of programs.
func parts(root string) string {
	if bin := os.Getenv("DIRECTX_NRI_PARTS"); bin != "" {
		return filepath.Dir(bin)
	}
	return filepath.Join(root, ".parts")
}

// release makes a release of the sources in dir, and returns its folder.
func release(t *testing.T, dir, umask string, env ...string) string {
	t.Helper()
	command := exec.CommandContext(t.Context(), "sh", "-c", `umask "$0" && exec make release "$@"`, umask,
		"VERSION="+version, "SOURCE_DATE_EPOCH="+created, "REVISION=0123456789")
	command.Dir = dir
	command.Env = append(append(os.Environ(), "MAKEFLAGS=", "MAKELEVEL=", "MFLAGS="), env...)
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("make release: %v\n%s", err, out)
	}
	return filepath.Join(dir, "out", "release")
}

// copyTo copies the files that are named from one folder to another.
func copyTo(t *testing.T, names []string, root, to string) {
	t.Helper()
	for _, name := range names {
		info, err := os.Stat(filepath.Join(root, name))
		if errors.Is(err, os.ErrNotExist) {
			continue // Deleted, and not committed yet.
		}
		if err != nil {
			t.Fatal(err)
		}
		target := filepath.Join(to, name)
		if err := os.MkdirAll(filepath.Dir(target), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(target, read(t, root, name), info.Mode().Perm()); err != nil {
			t.Fatal(err)
		}
	}
}

func read(t *testing.T, dir, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// output runs a command in dir and returns what it prints.
func output(t *testing.T, dir, name string, args ...string) []byte {
	t.Helper()
	var stdout, stderr bytes.Buffer
	command := exec.CommandContext(t.Context(), name, args...)
	command.Dir, command.Stdout, command.Stderr = dir, &stdout, &stderr
	if err := command.Run(); err != nil {
		t.Fatalf("%s %s: %v\n%s%s", name, strings.Join(args, " "), err, stdout.Bytes(), stderr.Bytes())
	}
	return stdout.Bytes()
}

// open reads an archive as the layout that it is, and validates all of it.
func open(t *testing.T, archive string) v1.ImageIndex {
	t.Helper()
	dir := t.TempDir()
	output(t, dir, "tar", "--extract", "--file", archive)
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(index); err != nil {
		t.Errorf("%s is not valid: %v", archive, err)
	}
	return index
}

func entry(t *testing.T, index v1.ImageIndex) v1.Descriptor {
	t.Helper()
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if got, want := manifest.Manifests[0].Annotations["org.opencontainers.image.ref.name"], "docker.io/library/directx-nri:"+version; got != want {
		t.Errorf("the archive's image is named %q, want %q", got, want)
	}
	return manifest.Manifests[0]
}

func checkImage(t *testing.T, index v1.ImageIndex, descriptor v1.Descriptor, name string) {
	t.Helper()
	platform, err := product.ParsePlatform(name)
	if err != nil {
		t.Fatal(err)
	}
	image, err := index.Image(descriptor.Digest)
	if err != nil {
		t.Fatal(err)
	}
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if got := config.OS + "-" + config.Architecture; got != name || config.OSVersion != "" {
		t.Errorf("the image is for %s %q, want %s and no version", got, config.OSVersion, name)
	}
	if got := config.Config.Labels["org.opencontainers.image.version"]; got != version {
		t.Errorf("the image says it is of version %q, want %s", got, version)
	}
	if !config.Created.Equal(time.Unix(1_700_000_000, 0)) {
		t.Errorf("the image was made %s, want SOURCE_DATE_EPOCH", config.Created)
	}
	root, documents := "", "usr/share/doc/directx-nri/"
	if platform.OS == "windows" {
		root, documents = "Files/", "Files/doc/"
	}
	content := flatten(t, image)
	for _, program := range product.Programs() {
		checkProgram(t, root+program+platform.Suffix(), content[root+program+platform.Suffix()], platform)
	}
	for _, document := range []string{"LICENSE", "THIRD_PARTY_NOTICES.txt"} {
		if len(content[documents+document]) == 0 {
			t.Errorf("%s%s is not in the image", documents, document)
		}
	}
	checkSBOM(t, content[documents+"sbom.spdx.json"])
}

func flatten(t *testing.T, image v1.Image) map[string][]byte {
	t.Helper()
	stream := mutate.Extract(image)
	defer stream.Close()
	content := make(map[string][]byte)
	r := tar.NewReader(stream)
	for {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return content
		}
		if err != nil {
			t.Fatal(err)
		}
		if header.Typeflag != tar.TypeReg {
			continue
		}
		if content[path.Clean(header.Name)], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
}

// checkProgram looks at the file itself, not at what Go says of it: the machine,
// and that it needs no loader.
func checkProgram(t *testing.T, name string, data []byte, platform product.Platform) {
	t.Helper()
	if platform.OS == "windows" {
		file, err := pe.NewFile(bytes.NewReader(data))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			return
		}
		if want := map[string]uint16{"amd64": pe.IMAGE_FILE_MACHINE_AMD64, "arm64": pe.IMAGE_FILE_MACHINE_ARM64}[platform.Arch]; file.Machine != want {
			t.Errorf("%s is for the machine %#x, want %#x", name, file.Machine, want)
		}
		return
	}
	file, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		t.Errorf("%s: %v", name, err)
		return
	}
	if want := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[platform.Arch]; file.Machine != want {
		t.Errorf("%s is for the machine %s, want %s", name, file.Machine, want)
	}
	for _, segment := range file.Progs {
		if segment.Type == elf.PT_INTERP || segment.Type == elf.PT_DYNAMIC {
			t.Errorf("%s is not static", name)
		}
	}
}

func checkSBOM(t *testing.T, text []byte) {
	t.Helper()
	doc, err := spdxjson.Read(bytes.NewReader(text))
	if err != nil {
		t.Errorf("the SBOM: %v", err)
		return
	}
	if err := spdxlib.ValidateDocument(doc); err != nil {
		t.Errorf("the SBOM: %v", err)
	}
	ids := make(map[string]bool)
	for _, p := range doc.Packages {
		if ids[string(p.PackageSPDXIdentifier)] {
			t.Errorf("the SBOM has two packages %s", p.PackageSPDXIdentifier)
		}
		ids[string(p.PackageSPDXIdentifier)] = true
		if p.PackageLicenseConcluded == "NOASSERTION" {
			t.Errorf("the licence of %s is not known: look at it, and have internal/notices know it", p.PackageName)
		}
	}
	if len(doc.Packages) < 20 || len(doc.Files) != len(product.Programs()) {
		t.Errorf("the SBOM has %d packages and %d files", len(doc.Packages), len(doc.Files))
	}
}

func checkArchive(t *testing.T, release, archive string) {
	t.Helper()
	dir := t.TempDir()
	name, windows := strings.CutSuffix(archive, ".zip")
	if windows {
		unzip(t, filepath.Join(release, "directx-nri-"+version+"-"+archive), dir)
	} else {
		name = strings.TrimSuffix(archive, ".tar.gz")
		output(t, dir, "tar", "--extract", "--gzip", "--file", filepath.Join(release, "directx-nri-"+version+"-"+archive))
	}
	platform, err := product.ParsePlatform(name)
	if err != nil {
		t.Fatal(err)
	}
	dir = filepath.Join(dir, "directx-nri-"+version+"-"+name)
	for _, program := range product.Programs() {
		data := read(t, dir, program+platform.Suffix())
		checkProgram(t, program, data, platform)
		if _, err := buildinfo.Read(bytes.NewReader(data)); err != nil {
			t.Errorf("%s: %v", program, err)
		}
	}
	for _, file := range []string{
		"LICENSE", "README.md", "THIRD_PARTY_NOTICES.txt", "completions/dxctl.bash", "completions/dxctl.ps1",
		"docs/install.md", "deployments/config/windows.yaml", "deployments/helm/directx-nri/templates/_helpers.tpl",
		"Dockerfile", "Dockerfile.windows",
	} {
		if len(read(t, dir, file)) == 0 {
			t.Errorf("%s is empty", file)
		}
	}
	for file, want := range map[string]string{
		"deployments/helm/directx-nri/Chart.yaml":  `appVersion: "` + version + `"`,
		"deployments/manifests/kustomization.yaml": "newTag: " + version + "\n",
		"deployments/manifests/windows.yaml":       "image: directx-nri:" + version + "\n",
		"deployments/manifests/linux.yaml":         "image: directx-nri:" + version + "\n",
	} {
		if !strings.Contains(string(read(t, dir, file)), want) {
			t.Errorf("%s has no %q", file, want)
		}
	}
	if name != "linux-amd64" {
		return
	}
	checkChart(t, repository(t), filepath.Join(dir, "deployments", "helm", "directx-nri"))
	if got := string(output(t, dir, "./dxctl", "--version")); !strings.Contains(got, version) {
		t.Errorf("the released dxctl says it is %q, want %s", got, version)
	}
}

// unzip does with an archive what a machine without unzip cannot.
func unzip(t *testing.T, archive, dir string) {
	t.Helper()
	r, err := zip.OpenReader(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := os.CopyFS(dir, r); err != nil {
		t.Fatal(err)
	}
}

func checkChart(t *testing.T, root, chart string) {
	t.Helper()
	helm := filepath.Join(parts(root), "bin", "helm")
	shown := string(output(t, root, helm, "show", "chart", chart))
	for _, want := range []string{"version: " + version[1:] + "\n", "appVersion: " + version + "\n"} {
		if !strings.Contains(shown, want) {
			t.Errorf("the chart does not say %q:\n%s", want, shown)
		}
	}
	rendered := string(output(t, root, helm, "template", "x", chart, "--namespace", "directx-nri", "--set", "image.repository=registry.example/directx-nri"))
	if want := "image: registry.example/directx-nri:" + version; !strings.Contains(strings.ReplaceAll(rendered, `"`, ""), want) {
		t.Errorf("the chart does not run %q", want)
	}
}

// TestWindowsLayerUnderWine runs the test of the Windows image's layer that
// takes hcsshim's own libraries and Windows' own reading of security
// descriptors.
func TestWindowsLayerUnderWine(t *testing.T) {
	t.Parallel()
	root, dir := repository(t), t.TempDir()
	program := filepath.Join(dir, "baselayer.exe")
	build := exec.CommandContext(t.Context(), "go", "test", "-c", "-trimpath", "-o", program, "./internal/baselayer")
	build.Env = append(os.Environ(), "GOOS=windows", "GOARCH=amd64", "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the test: %v\n%s", err, out)
	}
	wine := wineProgram(t, "wine64")
	run := func(ctx context.Context, args ...string) (string, error) {
		command := exec.CommandContext(ctx, wine, args...)
		command.Dir = dir
		command.Env = append(os.Environ(), "WINEPREFIX="+filepath.Join(dir, "prefix"), "WINEDEBUG=-all", "WINEDLLOVERRIDES=mscoree,mshtml=d")
		out, err := command.CombinedOutput()
		return string(out), err
	}
	t.Cleanup(func() { // The test's own context has ended by then.
		if out, err := run(context.Background(), "wineboot", "--end-session", "--kill"); err != nil {
			fmt.Fprintf(os.Stderr, "end Wine: %v\n%s", err, out)
		}
	})
	if out, err := run(t.Context(), "wineboot", "--init"); err != nil {
		t.Fatalf("make a Wine prefix: %v\n%s", err, out)
	}
	// No Go program starts under Debian's Wine without it.
	double := read(t, parts(root), "windows/bcryptprimitives.dll")
	if err := os.WriteFile(filepath.Join(dir, "prefix/drive_c/windows/system32/bcryptprimitives.dll"), double, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := run(t.Context(), program, "-test.v")
	if err != nil || !strings.Contains(out, "--- PASS: TestHcsshimReadsTheLayer") {
		t.Errorf("the tests under Wine: %v\n%s", err, out)
	}
}

// wineProgram finds one of Wine's programs. Debian's package puts them beside
// PATH.
func wineProgram(t *testing.T, name string) string {
	t.Helper()
	if found, err := exec.LookPath(name); err == nil {
		return found
	}
	found := filepath.Join("/usr/lib/wine", name)
	if _, err := os.Stat(found); err != nil {
		t.Fatalf("%s is missing: test/parts/build.sh windows installs it", name)
	}
	return found
}
