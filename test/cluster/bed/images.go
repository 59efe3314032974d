//go:build e2e && linux

package bed

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	node "directx-nri/test/bed"
)

// The images that are on the node. Nothing is pulled: they are made of the
// machine's busybox.
const (
	BusyboxImage = "docker.io/library/busybox:1.36"
	PauseImage   = "dx.test/pause:1"
)

func (c *Cluster) importOwnImages(t testing.TB) {
	t.Helper()
	path, err := exec.LookPath("busybox")
	if err != nil {
		t.Fatal(err)
	}
	busybox, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, command := range map[string][]string{
		BusyboxImage: {"/bin/sh"},
		PauseImage:   {"/bin/sleep", "2147483647"},
	} {
		archive := filepath.Join(c.Dir, "image.tar")
		if _, err := node.WriteImage(archive, name, command, busybox); err != nil {
			t.Fatalf("make image %s: %v", name, err)
		}
		c.ImportImage(t, archive)
	}
}

// ImportImage gives an image archive to the node's containerd.
func (c *Cluster) ImportImage(t testing.TB, archive string) {
	t.Helper()
	out, err := exec.Command(c.Parts.Stock("ctr"), "--namespace", node.PodNamespace, "images", "import", "--snapshotter", snapshotter(t), archive).CombinedOutput()
	if err != nil {
		t.Fatalf("import the image archive %s: %v\n%s", archive, err, out)
	}
}
