//go:build e2e && linux

package cluster

import (
	"context"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"directx-nri/test/bed"
)

const (
	busyboxImage = "docker.io/library/busybox:1.36"
	pauseImage   = "dx.test/pause:1"
	// repository is that of the product's images.
	repository = "docker.io/library/directx-nri"
	platform   = "linux-" + runtime.GOARCH
)

// importBusybox gives the node images that contain the machine's busybox.
func (m *machine) importBusybox(t testing.TB) {
	t.Helper()
	path, err := exec.LookPath("busybox")
	if err != nil {
		t.Fatal(err)
	}
	busybox := mustRead(t, path)
	for name, command := range map[string][]string{busyboxImage: {"/bin/sh"}, pauseImage: {"/bin/sleep", "2147483647"}} {
		archive := filepath.Join(m.dir, "image.tar")
		if _, err := bed.WriteImage(archive, name, command, []byte(busybox)); err != nil {
			t.Fatal(err)
		}
		m.importImage(t, archive)
	}
}

func (m *machine) importImage(t testing.TB, archive string) {
	t.Helper()
	out, err := exec.Command(m.parts.Stock("ctr"), "--namespace", bed.PodNamespace, "images", "import", "--snapshotter", snapshotter(t), archive).CombinedOutput()
	if err != nil {
		t.Fatalf("import image archive %s: %v\n%s", archive, err, out)
	}
}

// image is an image of the product.
type image struct {
	version string // also its tag
	dir     string
	built   chan struct{} // closed when file or err is set
	file    string
	err     error
}

// images differ in their version only. They are built in the background.
type images struct{ older, newer *image }

func buildImages(t testing.TB) *images {
	t.Helper()
	parts, err := bed.FindParts()
	if err != nil {
		t.Fatal(err)
	}
	newImage := func(version string) *image {
		return &image{version: version, dir: filepath.Join(bed.RunDir(), "images", version), built: make(chan struct{})}
	}
	both := &images{older: newImage("v0.9.1"), newer: newImage("v0.9.2")}
	go func() {
		for _, i := range []*image{both.older, both.newer} {
			// The test's context ends before its cleanup, which waits for this.
			i.file, i.err = bed.BuildImage(context.Background(), parts.Root, i.dir, i.version, platform)
			close(i.built)
		}
	}()
	t.Cleanup(func() { <-both.newer.built })
	return both
}

// program returns the path of a program of the image.
func (i *image) program(name string) string { return filepath.Join(i.dir, "bin", platform, name) }

// archive waits for the image and returns its archive.
func (i *image) archive(t testing.TB) string {
	t.Helper()
	<-i.built
	if i.err != nil {
		t.Fatalf("build image %s: %v", i.version, i.err)
	}
	return i.file
}
