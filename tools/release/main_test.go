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
