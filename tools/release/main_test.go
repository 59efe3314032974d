package main

import (
	"strings"
	"testing"
	"time"
)

const testVersion = "v0.2.0-rc.1"

// TestNoBaseImage checks that the error has its cause and a remedy, and that images for Linux need no base image.
func TestNoBaseImage(t *testing.T) {
	t.Setenv("WINDOWS_BASE_IMAGE", "127.0.0.1:1/base:v1")
	r := release{version: testVersion, created: time.Unix(1_700_000_000, 0).UTC(), out: t.TempDir()}
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

func TestArguments(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		args []string
		want string
	}{
		{"no version", []string{"images"}, "docker.io/library/directx-nri:"},
		{"bad version", []string{"-version", "a/b", "images"}, "a/b"},
		{"image without a registry", []string{"-version", testVersion, "-image", "directx-nri", "images"}, "directx-nri"},
		{"no programs", []string{"-version", testVersion, "-bin", t.TempDir(), "-platforms", "linux-arm64", "images"}, "make build-linux-arm64"},
	} {
		if err := run(tt.args); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: error %v, want %q in it", tt.name, err, tt.want)
		}
	}
}
