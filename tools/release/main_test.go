package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/google/go-containerregistry/pkg/crane"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
)

const (
	testVersion = "v0.2.0-rc.1"
	hive        = "Files/Windows/System32/config/SYSTEM" // a file of the base image
)

func newRelease(t *testing.T) release {
	t.Helper()
	return release{version: testVersion, created: time.Unix(1_700_000_000, 0).UTC(), out: t.TempDir()}
}

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

// extract returns the headers and the contents of the files in an image.
func extract(t *testing.T, image v1.Image) (map[string]*tar.Header, map[string][]byte) {
	t.Helper()
	stream := mutate.Extract(image)
	defer stream.Close()
	headers, contents := map[string]*tar.Header{}, map[string][]byte{}
	for r := tar.NewReader(stream); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return headers, contents
		}
		if err != nil {
			t.Fatal(err)
		}
		headers[header.Name] = header
		if contents[header.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
}

func TestImage(t *testing.T) {
	serveBase(t)
	r := newRelease(t)
	for _, tt := range []struct {
		os, program, entrypoint string
		files                   map[string]string
	}{
		{"linux", "dxctl", "/dxctl", map[string]string{"dxctl": "MZ program", "usr/share/doc/directx-nri/LICENSE": "text"}},
		{"windows", "dxctl.exe", `%CONTAINER_SANDBOX_MOUNT_POINT%\dxctl.exe`,
			map[string]string{"Files/dxctl.exe": "MZ program", "Files/doc/LICENSE": "text", hive: "hive"}},
	} {
		t.Run(tt.os, func(t *testing.T) {
			image, err := r.newImage(build{tt.os, "amd64", tree{tt.program: r.newFile([]byte("MZ program"))}, tree{"LICENSE": r.newFile([]byte("text"))}})
			if err != nil {
				t.Fatal(err)
			}
			config, err := image.ConfigFile()
			if err != nil {
				t.Fatal(err)
			}
			if config.OS != tt.os || config.Architecture != "amd64" || config.OSVersion != "" {
				t.Errorf("the image is for %s/%s %q", config.OS, config.Architecture, config.OSVersion)
			}
			if got := slices.Concat(config.Config.Entrypoint, config.Config.Cmd); !slices.Equal(got, []string{tt.entrypoint, "--help"}) {
				t.Errorf("the image runs %q", got)
			}
			if got := config.Config.Labels["org.opencontainers.image.version"]; got != testVersion {
				t.Errorf("the image has version %q", got)
			}
			headers, contents := extract(t, image)
			for name, want := range tt.files {
				if got := string(contents[name]); got != want {
					t.Errorf("%s has %q, want %q", name, got, want)
				}
			}
			for name, header := range headers {
				if name == hive || tt.os != "windows" {
					continue
				}
				attributes, descriptor := "32", fileDescriptor
				if header.Typeflag == tar.TypeDir {
					attributes, descriptor = "16", directoryDescriptor
				}
				records := header.PAXRecords
				if records["MSWINDOWS.fileattr"] != attributes || records["MSWINDOWS.rawsd"] != descriptor || records["LIBARCHIVE.creationtime"] != "1700000000" {
					t.Errorf("%s has the records %v", name, records)
				}
			}
		})
	}
}

// TestNoBaseImage checks that the error has its cause and a remedy, and that images for Linux need no base image.
func TestNoBaseImage(t *testing.T) {
	t.Setenv("WINDOWS_BASE_IMAGE", "127.0.0.1:1/base:v1")
	r := newRelease(t)
	err := r.writeImages([]build{{os: "windows", arch: "amd64"}})
	for _, want := range []string{"image for windows-amd64", "127.0.0.1:1/base:v1", "connection refused", "set WINDOWS_BASE_IMAGE", "IMAGE_PLATFORMS=linux-amd64"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q in it", err, want)
		}
	}
	if err := r.writeImages([]build{{os: "linux", arch: "amd64"}}); err != nil {
		t.Error(err)
	}
}

// TestLoad loads this test's own program, which contains modules.
func TestLoad(t *testing.T) {
	t.Parallel()
	r := newRelease(t)
	r.bin = t.TempDir()
	if _, err := r.load("linux-amd64"); err == nil || !strings.Contains(err.Error(), "make build-linux-amd64") {
		t.Errorf("error %v, want the command that builds programs", err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	target := filepath.Join(r.bin, "linux-amd64", "dxctl")
	if err := errors.Join(os.Mkdir(filepath.Dir(target), 0o755), os.WriteFile(target, data, 0o600)); err != nil {
		t.Fatal(err)
	}
	b, err := r.load("linux-amd64")
	if err != nil {
		t.Fatal(err)
	}
	checkSBOM(t, b.documents[sbomFile].Data, "golang.org/x/mod", "std")
	notices := b.documents["THIRD_PARTY_NOTICES.txt"].Data
	for _, want := range []string{"golang.org/x/mod@v", ": PATENTS\n", "Apache License", "Redistribution and use"} {
		if !bytes.Contains(notices, []byte(want)) {
			t.Errorf("the notices have no %q", want)
		}
	}
}

// checkSBOM checks that an SBOM can be read and has the modules among others.
func checkSBOM(t *testing.T, text []byte, modules ...string) {
	t.Helper()
	var bom cdx.BOM
	if err := cdx.NewBOMDecoder(bytes.NewReader(text), cdx.BOMFileFormatJSON).Decode(&bom); err != nil {
		t.Fatal(err)
	}
	if bom.Metadata.Component.Version != testVersion {
		t.Errorf("the SBOM has version %q", bom.Metadata.Component.Version)
	}
	for _, module := range modules {
		if !slices.ContainsFunc(*bom.Components, func(c cdx.Component) bool {
			return c.Name == module && c.Version != "" && c.PackageURL == "pkg:golang/"+module+"@"+c.Version
		}) {
			t.Errorf("the SBOM has no %s", module)
		}
	}
}

func TestArguments(t *testing.T) {
	t.Parallel()
	bin := t.TempDir()
	for _, tt := range []struct {
		name string
		args []string
		want string
	}{
		{"no version", []string{"images"}, "docker.io/library/directx-nri:"},
		{"bad version", []string{"-version", "a/b", "images"}, "a/b"},
		{"image without a registry", []string{"-version", testVersion, "-image", "directx-nri", "images"}, "directx-nri"},
		{"no programs", []string{"-version", testVersion, "-bin", bin, "-platforms", "linux-arm64", "images"}, "make build-linux-arm64"},
	} {
		if err := run(tt.args); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: error %v, want %q in it", tt.name, err, tt.want)
		}
	}
}
