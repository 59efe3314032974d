//go:build e2e && linux

package cluster

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
)

// repository is where the images are, for the chart.
const repository = "docker.io/library/directx-nri"

// images are two images of the product, which differ in their version.
type images struct {
	older, newer string // tags
	archives     []string
}

// buildImages builds the images by the release tool, as `make images` does.
func (s *suite) buildImages(t testing.TB) images {
	t.Helper()
	built := images{older: "v0.9.1", newer: "v0.9.2"}
	for _, version := range []string{built.older, built.newer} {
		dir, bin := filepath.Join(s.Dir, "images", version), filepath.Dir(s.program(version, ""))
		if err := os.MkdirAll(bin, 0o755); err != nil {
			t.Fatal(err)
		}
		s.goTool(t, ".", "build", "-trimpath", "-buildvcs=false", "-tags", "grpcnotrace", "-ldflags", "-s -w -X main.version="+version, "-o", bin+"/",
			"./cmd/directx-advertiser", "./cmd/directx-nri", "./cmd/containerd-shim-directx-v1", "./cmd/dxctl")
		s.goTool(t, "tools/release", "run", ".", "images", "--version", version, "--root", s.Parts.Root,
			"--bin", filepath.Join(dir, "bin"), "--out", dir, "--platform", "linux-"+runtime.GOARCH)
		built.archives = append(built.archives, filepath.Join(dir, fmt.Sprintf("directx-nri-%s-linux-%s.tar", version, runtime.GOARCH)))
	}
	return built
}

// program is where a program of an image was built.
func (s *suite) program(version, name string) string {
	return filepath.Join(s.Dir, "images", version, "bin", "linux-"+runtime.GOARCH) + "/" + name
}

func (s *suite) goTool(t testing.TB, folder string, args ...string) {
	t.Helper()
	cmd := exec.Command("go", args...)
	cmd.Dir = filepath.Join(s.Parts.Root, folder)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go %v: %v\n%s", args, err, out)
	}
}
