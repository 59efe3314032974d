//go:build e2e

package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"cmp"
	"debug/buildinfo"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/crane"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

const testVersion = "v0.2.0-rc.1"

const hive = "Files/Windows/System32/config/SYSTEM" // a file of the base image

// serveBase sets the variable for the base image to one that a registry on this machine serves.
func serveBase(t *testing.T) {
	t.Helper()
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	name := strings.TrimPrefix(server.URL, "http://") + "/base:v1"
	base, err := crane.Image(map[string][]byte{hive: []byte("hive")})
	if err := errors.Join(err, crane.Push(base, name)); err != nil {
		t.Fatal(err)
	}
	t.Setenv("WINDOWS_BASE_IMAGE", name)
}

// TestRelease makes a release twice, in different directories and environments, compares the two, and looks into
// one.
func TestRelease(t *testing.T) {
	serveBase(t)
	root, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	one, other := filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "another", "directory")
	copyTo(t, root, one)
	copyTo(t, one, other) // The first may have changed since.
	first := makeRelease(t, one, "022", "TZ=UTC", "LC_ALL=C")
	second := makeRelease(t, other, "077", "TZ=Asia/Tokyo", "LC_ALL=C.UTF-8", "GOARM64=v9.0", "GOFLAGS=-gcflags=github.com/directx-nri/directx-nri/...=-l")
	if sums, again := read(t, first, "SHA256SUMS"), read(t, second, "SHA256SUMS"); !bytes.Equal(sums, again) {
		t.Errorf("two releases of the same sources differ:\n%s\n%s", sums, again)
	}
	output(t, first, "sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS")

	outer := open(t, filepath.Join(first, "directx-nri-image-"+testVersion+".tar"))
	all, err := outer.ImageIndex(entries(t, outer)[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	for i, platform := range []string{"linux-amd64", "linux-arm64", "windows-amd64"} {
		t.Run("image "+platform, func(t *testing.T) {
			index := open(t, filepath.Join(first, "directx-nri-image-"+testVersion+"-"+platform+".tar"))
			image := entries(t, index)[0]
			checkImage(t, index, image, platform)
			if of := entries(t, all)[i]; of.Digest != image.Digest || of.Platform.OS+"-"+of.Platform.Architecture != platform {
				t.Errorf("the image of all platforms has %v", of)
			}
		})
	}
	for _, archive := range []string{"linux-amd64.tar.gz", "linux-arm64.tar.gz", "windows-amd64.zip", "windows-arm64.zip"} {
		t.Run(archive, func(t *testing.T) { checkArchive(t, root, first, archive) })
	}
	t.Run("chart", func(t *testing.T) {
		checkChart(t, root, filepath.Join(first, "directx-nri-"+testVersion[1:]+".tgz"))
	})
	t.Run("packages", func(t *testing.T) { checkPackages(t, first) })
	t.Run("publish", func(t *testing.T) { checkPublish(t, one, first) })
}

// checkPackages installs, upgrades and removes the packages for this machine with dpkg and rpm, in a root directory
// that has nothing but a shell and a DaemonSet's files. Afterwards, it has these and nothing else.
func checkPackages(t *testing.T, release string) {
	t.Helper()
	const script = `set -e
mkdir -p "$0/usr/local/bin" "$0/var/lib/dpkg/info" "$0/var/lib/dpkg/updates" "$0/var/lib/dpkg/triggers" "$0/bin" "$0/usr/bin"
touch "$0/var/lib/dpkg/status" "$0/var/lib/dpkg/available" "$0/usr/bin/another"
cp "$(command -v busybox)" "$0/bin/sh"
mkdir -p "$0/var/lib/directx-nri/allocations" "$0/etc/directx-nri" # of a DaemonSet
touch "$0/var/lib/directx-nri/allocations/record.json" "$0/etc/directx-nri/config.yaml"
files() { (cd "$0"; find . -path ./var/lib/dpkg -prune -o -path ./var/lib/rpm -prune -o -type f -print | sort); }
before=$(files)
check() { # check COMMAND...: the product is there, and after the command it is gone
	chroot "$0" /usr/bin/dxctl --version
	test -s "$0/usr/lib/systemd/system/directx-nri.service" -a -s "$0/usr/share/man/man1/dxctl.1" -a -s "$0/usr/share/doc/directx-nri/LICENSE"
	cp "$0/usr/bin/containerd-shim-directx-v1" "$0/usr/local/bin/" # As 'dxctl runtime install' does.
	"$@"
	test "$before" = "$(files)" || { files >&2; exit 1; }
}
dpkg="dpkg --root=$0 --log=/dev/null"
$dpkg --install "$1"/*_$2.deb
$dpkg --install "$1"/*_$2.deb
check $dpkg --purge directx-nri
rpm="rpm --root $0 --dbpath /var/lib/rpm --nodeps"
$rpm --install "$1"/*.$3.rpm
$rpm --upgrade --force "$1"/*.$3.rpm
check $rpm --erase directx-nri
`
	architecture := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]
	got := output(t, release, "unshare", "--map-root-user", "sh", "-c", script, t.TempDir(), release, runtime.GOARCH, architecture)
	if count := strings.Count(string(got), testVersion); count != 2 {
		t.Errorf("the packages have %d programs of version %s:\n%s", count, testVersion, got)
	}
}

// checkPublish pushes the release in dir to a registry and pulls it from there. A second time, it is refused, and so
// it is while the registry does not say what it has.
func checkPublish(t *testing.T, dir, release string) {
	t.Helper()
	var forbidden, writes atomic.Bool
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		isRead := r.Method == http.MethodGet || r.Method == http.MethodHead
		if forbidden.Load() && isRead && strings.Contains(r.URL.Path, "/manifests/") {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		writes.Store(writes.Load() || !isRead)
		inner.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	address := strings.Replace(strings.TrimPrefix(server.URL, "http://"), "127.0.0.1", "localhost", 1)
	image, charts := address+"/owner/directx-nri", address+"/owner/charts"
	publish := func() (stdout, stderr string, err error) {
		// As the workflow, which takes all that this prints for outputs.
		command := exec.CommandContext(t.Context(), "make", "--silent", "publish", "VERSION="+testVersion, "IMAGE="+image, "CHARTS="+charts)
		command.Dir = dir
		command.Env = append(os.Environ(), "DIRECTX_NRI_PARTS="+filepath.Dir(helm(t)), "MAKEFLAGS=", "MAKELEVEL=", "MFLAGS=")
		var out, problems strings.Builder
		command.Stdout, command.Stderr = &out, &problems
		err = command.Run()
		return out.String(), problems.String(), err
	}
	forbidden.Store(true)
	if _, stderr, err := publish(); err == nil || !strings.Contains(stderr, "403") || writes.Load() {
		t.Errorf("published to a registry that does not say what it has (wrote %v): %v\n%s", writes.Load(), err, stderr)
	}
	forbidden.Store(false)
	published, stderr, err := publish()
	if err != nil {
		t.Fatal(err, stderr)
	}
	outer := open(t, filepath.Join(release, "directx-nri-image-"+testVersion+".tar"))
	pulled, err := crane.Digest(image + ":" + testVersion)
	if want := entries(t, outer)[0].Digest.String(); err != nil || pulled != want {
		t.Errorf("the registry has image %s (%v), the release %s", pulled, err, want)
	}
	to := t.TempDir()
	output(t, to, helm(t), "pull", "--plain-http", "oci://"+charts+"/directx-nri", "--version", testVersion[1:])
	if chart := "directx-nri-" + testVersion[1:] + ".tgz"; !bytes.Equal(read(t, to, chart), read(t, release, chart)) {
		t.Error("the registry has another chart than the release")
	}
	chart, err := crane.Digest(charts + "/directx-nri:" + testVersion[1:])
	want := fmt.Sprintf("image=%s\nimage_digest=%s\nchart=%s/directx-nri\nchart_digest=%s\n", image, pulled, charts, chart)
	if err != nil || published != want {
		t.Errorf("published\n%s, want\n%s (%v)", published, want, err)
	}
	if _, stderr, err := publish(); err == nil || !strings.Contains(stderr, image+":"+testVersion+" exists") {
		t.Errorf("an existing release is published: %v\n%s", err, stderr)
	}
}

// helm returns the program, which test/parts/build.sh builds.
func helm(t *testing.T) string {
	t.Helper()
	root, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(cmp.Or(os.Getenv("DIRECTX_NRI_PARTS"), filepath.Join(root, ".parts", "bin")), "helm")
}

// makeRelease makes a release of the sources in dir, and returns its directory.
func makeRelease(t *testing.T, dir, umask string, env ...string) string {
	t.Helper()
	command := exec.CommandContext(t.Context(), "sh", "-c", `umask "$0" && exec make release "$@"`, umask,
		"VERSION="+testVersion, "SOURCE_DATE_EPOCH=1700000000", "REVISION=0123456789")
	command.Dir = dir
	command.Env = append(append(os.Environ(), "MAKEFLAGS=", "MAKELEVEL=", "MFLAGS="), env...)
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("make release: %v\n%s", err, out)
	}
	return filepath.Join(dir, "out", "release")
}

// copyTo copies the sources in a directory.
func copyTo(t *testing.T, from, to string) {
	t.Helper()
	const script = `mkdir -p "$0" && tar --exclude=./.git --exclude=./.parts --exclude=./bin --exclude=./out --create . | tar --extract --directory "$0"`
	output(t, from, "sh", "-c", script, to)
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
	if got, want := entries(t, index)[0].Annotations["org.opencontainers.image.ref.name"], "ghcr.io/directx-nri/directx-nri:"+testVersion; got != want {
		t.Errorf("the image in %s is named %q, want %q", archive, got, want)
	}
	return index
}

func entries(t *testing.T, index v1.ImageIndex) []v1.Descriptor {
	t.Helper()
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	return manifest.Manifests
}

func checkImage(t *testing.T, index v1.ImageIndex, descriptor v1.Descriptor, platform string) {
	t.Helper()
	image, err := index.Image(descriptor.Digest)
	if err != nil {
		t.Fatal(err)
	}
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	root, documents, command := "", "usr/share/doc/directx-nri/", "[/dxctl --help]"
	if config.OS == "windows" {
		root, documents, command = "Files/", "Files/doc/", `[%CONTAINER_SANDBOX_MOUNT_POINT%\dxctl.exe --help]`
	}
	if got := config.OS + "-" + config.Architecture; got != platform || config.OSVersion != "" {
		t.Errorf("the image is for %s %q, want %s and no version", got, config.OSVersion, platform)
	}
	if !config.Created.Equal(time.Unix(1_700_000_000, 0)) {
		t.Errorf("the image was created %s, want SOURCE_DATE_EPOCH", config.Created)
	}
	if got := fmt.Sprint(append(config.Config.Entrypoint, config.Config.Cmd...)); got != command {
		t.Errorf("the image runs %s, want %s", got, command)
	}
	if got := config.Config.Labels["org.opencontainers.image.version"]; got != testVersion {
		t.Errorf("the image has version %q", got)
	}
	content := map[string][]byte{}
	stream := mutate.Extract(image)
	defer stream.Close()
	for r := tar.NewReader(stream); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			content[header.Name], err = io.ReadAll(r)
		}
		if err != nil {
			t.Fatal(err)
		}
		if config.OS == "windows" && header.Name != hive && (header.PAXRecords["MSWINDOWS.fileattr"] == "" || header.PAXRecords["MSWINDOWS.rawsd"] == "") {
			t.Errorf("Windows does not read %s: it has the records %v", header.Name, header.PAXRecords)
		}
	}
	for _, program := range programs(platform) {
		checkProgram(t, root+program, content[root+program], platform)
	}
	if _, ok := content["Hives"]; config.OS == "windows" && !ok {
		t.Error("the layer has no directory Hives, so Windows does not import it")
	}
	if config.OS == "windows" && string(content[hive]) != "hive" {
		t.Errorf("the base image is not below: %s has %q", hive, content[hive])
	}
	if len(content[documents+"LICENSE"]) == 0 {
		t.Error("there is no license in the image")
	}
	for _, want := range []string{"golang.org/x/net@v", ": PATENTS\n", "Apache License", "Redistribution and use"} {
		if !bytes.Contains(content[documents+"THIRD_PARTY_NOTICES.txt"], []byte(want)) {
			t.Errorf("the notices have no %q", want)
		}
	}
	for _, want := range []string{"pkg:golang/github.com/spf13/cobra@", "pkg:golang/google.golang.org/grpc@", "pkg:golang/std@", testVersion + `"`} {
		if !bytes.Contains(content[documents+sbomFile], []byte(want)) {
			t.Errorf("the SBOM has no %s", want)
		}
	}
}

// programs returns the names of the programs for a platform.
func programs(platform string) []string {
	names := []string{"containerd-shim-directx-v1", "directx-advertiser", "directx-labeler", "directx-nri", "dxctl"}
	if strings.HasPrefix(platform, "windows") {
		for i := range names {
			names[i] += ".exe"
		}
	}
	return names
}

// checkProgram checks that a program is static, for the platform, and without paths of this machine.
func checkProgram(t *testing.T, name string, data []byte, platform string) {
	t.Helper()
	info, err := buildinfo.Read(bytes.NewReader(data))
	if err != nil {
		t.Errorf("%s: %v", name, err)
		return
	}
	system, architecture, _ := strings.Cut(platform, "-")
	for _, want := range []string{"GOOS=" + system, "GOARCH=" + architecture, "CGO_ENABLED=0", "-trimpath=true"} {
		if !strings.Contains(info.String(), "build\t"+want+"\n") {
			t.Errorf("%s is not built with %s:\n%s", name, want, info)
		}
	}
}

func checkArchive(t *testing.T, root, release, archive string) {
	t.Helper()
	dir := t.TempDir()
	platform, kind, _ := strings.Cut(archive, ".")
	name := "directx-nri-" + testVersion + "-" + platform
	if file := filepath.Join(release, name+"."+kind); kind == "zip" {
		r, err := zip.OpenReader(file)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		if err := os.CopyFS(dir, r); err != nil {
			t.Fatal(err)
		}
	} else {
		output(t, dir, "tar", "--extract", "--gzip", "--file", file)
		dir = filepath.Join(dir, name)
	}
	for _, program := range programs(platform) {
		checkProgram(t, program, read(t, dir, program), platform)
	}
	for _, file := range []string{
		"LICENSE", "README.md", "THIRD_PARTY_NOTICES.txt", sbomFile, "help/completions/dxctl.bash", "help/completions/dxctl.powershell",
		"help/man/dxctl.1", "docs/install.md", "deployments/config/windows.yaml", "deployments/helm/directx-nri/templates/_helpers.tpl",
		"Dockerfile", "Dockerfile.windows", "advertiser/config/config.schema.json", "deployments/helm/directx-nri/monitoring/rules.yaml", "deployments/eks/cluster.yaml", "deployments/try.sh",
	} {
		if len(read(t, dir, file)) == 0 {
			t.Errorf("%s is empty", file)
		}
	}
	for file, want := range map[string]string{
		"deployments/helm/directx-nri/Chart.yaml":  "appVersion: " + testVersion + "\n",
		"deployments/manifests/kustomization.yaml": "newTag: " + testVersion + "\n",
		"deployments/manifests/windows.yaml":       "image: directx-nri:" + testVersion + "\n",
		"deployments/manifests/linux.yaml":         "image: directx-nri:" + testVersion + "\n",
	} {
		if !strings.Contains(string(read(t, dir, file)), want) {
			t.Errorf("%s has no %q", file, want)
		}
	}
	if platform != runtime.GOOS+"-"+runtime.GOARCH {
		return
	}
	checkChart(t, root, filepath.Join(dir, "deployments", "helm", "directx-nri"))
	if got := string(output(t, dir, "./dxctl", "--version")); !strings.Contains(got, testVersion) {
		t.Errorf("the released dxctl has version %q, want %s", got, testVersion)
	}
}

func checkChart(t *testing.T, root, chart string) {
	t.Helper()
	shown := string(output(t, root, helm(t), "show", "chart", chart))
	for _, want := range []string{"version: " + testVersion[1:] + "\n", "appVersion: " + testVersion + "\n"} {
		if !strings.Contains(shown, want) {
			t.Errorf("the chart has no %q:\n%s", want, shown)
		}
	}
	rendered := string(output(t, root, helm(t), "template", "x", chart, "--namespace", "directx-nri", "--set", "image.repository=registry.example/directx-nri"))
	if want := "image: registry.example/directx-nri:" + testVersion; !strings.Contains(strings.ReplaceAll(rendered, `"`, ""), want) {
		t.Errorf("the chart does not run %q", want)
	}
}
