//go:build e2e && linux

package cluster

import (
	"context"
	"path/filepath"
	"runtime"
	"testing"

	node "directx-nri/test/bed"
	testsuite "directx-nri/test/bed"
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
	file    string        // its archive
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
			// A test's own context is over before its clean-up waits for this.
			i.file, i.err = testsuite.BuildImage(context.Background(), parts.Root, i.dir, i.version, platform)
			close(i.built)
		}
	}()
	t.Cleanup(func() { <-both.newer.built })
	return both
}

const platform = "linux-" + runtime.GOARCH

// program is where a program of the image is built.
func (i *image) program(name string) string {
	return filepath.Join(i.dir, "bin", platform, name)
}

// archive waits until the image is built and returns its archive.
func (i *image) archive(t testing.TB) string {
	t.Helper()
	<-i.built
	if i.err != nil {
		t.Fatalf("build image %s: %v", i.version, i.err)
	}
	return i.file
}
