//go:build e2e && linux

package cluster

import (
	"context"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
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
	build   func() (archive string, err error)
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
		dir := filepath.Join(bed.RunDir(), "images", version)
		// The test's context ends before its cleanup, which waits for this.
		return &image{version, dir, sync.OnceValues(func() (string, error) {
			return bed.BuildImage(context.Background(), parts.Root, dir, version, platform)
		})}
	}
	both := &images{older: newImage("v0.9.1"), newer: newImage("v0.9.2")}
	built := make(chan struct{})
	go func() {
		defer close(built)
		_, _ = both.older.build() // archive reports the error.
		_, _ = both.newer.build()
	}()
	t.Cleanup(func() { <-built })
	return both
}

// program returns the path of a program of the image.
func (i *image) program(name string) string { return filepath.Join(i.dir, "bin", platform, name) }

// archive waits for the image and returns its archive.
func (i *image) archive(t testing.TB) string {
	t.Helper()
	file, err := i.build()
	if err != nil {
		t.Fatalf("build image %s: %v", i.version, err)
	}
	return file
}
