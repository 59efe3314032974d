//go:build e2e && linux

package cluster

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"directx-nri/test/e2e/node"
)

// repository is where the images are, for the chart.
const repository = "docker.io/library/directx-nri"

// images are two images of the product, which differ in their version. They are
// built while the cluster starts, and the newer one while the older one is tested.
type images struct{ older, newer *image }

type image struct {
	version string // its tag too
	dir     string
	built   chan struct{} // closed when it is there, or err says why it is not
	err     error
}

// buildImages begins to build the images by the release tool, as `make images`
// does.
func buildImages(t testing.TB) *images {
	t.Helper()
	if reason := node.SkipReason(); reason != "" {
		t.Skip(reason)
	}
	parts, err := node.FindParts()
	if err != nil {
		t.Fatal(err)
	}
	newImage := func(version string) *image {
		return &image{version: version, dir: filepath.Join(node.RunDir(), "images", version), built: make(chan struct{})}
	}
	both := &images{older: newImage("v0.9.1"), newer: newImage("v0.9.2")}
	go func() {
		for _, i := range []*image{both.older, both.newer} {
			i.err = i.build(parts.Root)
			close(i.built)
		}
	}()
	t.Cleanup(func() { <-both.newer.built })
	return both
}

func (i *image) build(root string) error {
	bin := filepath.Dir(i.program(""))
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return err
	}
	// As the Makefile builds them, so that nothing is built twice.
	if err := goTool(root, "build", "-trimpath", "-buildvcs=false", "-tags", "grpcnotrace,nethttpomithttp2",
		"-ldflags", "-s -w -X main.version="+i.version, "-o", bin+"/",
		"./cmd/directx-advertiser", "./cmd/directx-nri", "./cmd/containerd-shim-directx-v1", "./cmd/dxctl"); err != nil {
		return err
	}
	return goTool(filepath.Join(root, "tools/release"), "run", ".", "images", "--version", i.version, "--root", root,
		"--bin", filepath.Join(i.dir, "bin"), "--out", i.dir, "--platform", "linux-"+runtime.GOARCH)
}

func goTool(folder string, args ...string) error {
	cmd := exec.Command("go", args...)
	cmd.Dir = folder
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go %v: %w\n%s", args, err, out)
	}
	return nil
}

// program is where a program of the image is built.
func (i *image) program(name string) string {
	return filepath.Join(i.dir, "bin", "linux-"+runtime.GOARCH) + "/" + name
}

// archive waits until the image is built and returns its archive.
func (i *image) archive(t testing.TB) string {
	t.Helper()
	<-i.built
	if i.err != nil {
		t.Fatalf("build image %s: %v", i.version, i.err)
	}
	return filepath.Join(i.dir, fmt.Sprintf("directx-nri-%s-linux-%s.tar", i.version, runtime.GOARCH))
}
