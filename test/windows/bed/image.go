//go:build e2e && windows

package bed

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/windows"
	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/directx-nri/directx-nri/internal/testutil"
)

// ImageName returns the node's image: on Windows itself, the base image for its build.
func (m *Machine) ImageName() string {
	if m.Doubled {
		return "localhost/base:1"
	}
	release := map[uint32]string{17763: "ltsc2019", 20348: "ltsc2022", 26100: "ltsc2025"}[windows.RtlGetVersion().BuildNumber]
	return "mcr.microsoft.com/windows/nanoserver:" + release
}

// pauseImages returns the names of the image of pods' sandboxes in containerd 1.7, 2.0 and 2.4, see
// DefaultSandboxImage in containerd.
func pauseImages() []string {
	return []string{"registry.k8s.io/pause:3.8", "registry.k8s.io/pause:3.10", "registry.k8s.io/pause:3.10.2"}
}

// importImage imports the image of [Node.RunImage] and, for pods, of CRI. Under Wine it is one of ../wine.sh. The
// snapshotter considers a layer unpacked by its key, and needs the disk of the container's
// own layer, which HCS creates on Windows.
func (n *Node) importImage(t testing.TB) {
	t.Helper()
	if !n.Doubled {
		for _, namespace := range []string{DefaultNamespace, CRINamespace} {
			if _, err := n.Ctr("--namespace", namespace, "images", "pull", "--local", n.ImageName()); err != nil {
				t.Fatalf("pull the image: %v", err)
			}
		}
		return
	}
	diff := "sha256:" + strings.TrimSpace(string(ReadFile(t, n.Executable("image.sha256"))))
	for _, namespace := range []string{DefaultNamespace, CRINamespace} {
		for _, args := range [][]string{
			{"images", "import", "--no-unpack", n.Executable("image.tar")},
			append([]string{"images", "tag", n.ImageName()}, pauseImages()...),
			{"snapshots", "prepare", "extract-base"},
			{"snapshots", "commit", diff, "extract-base"},
			{"snapshots", "label", diff, "containerd.io/gc.root=1"},
		} {
			if _, err := n.Ctr(append([]string{"--namespace", namespace}, args...)...); err != nil {
				t.Fatalf("import the image: ctr %v: %v", args, err)
			}
		}
	}
	layers, err := filepath.Glob(n.Path("root", "io.containerd.snapshotter.v1.windows", "snapshots", "*"))
	if err != nil || len(layers) != 2 {
		t.Fatalf("import the image: its layers are in %v, %v", layers, err)
	}
	for _, layer := range layers {
		testutil.WriteFile(t, filepath.Join(layer, "blank.vhdx"), "", 0o600)
	}
	n.awaitImages(t, append(pauseImages(), n.ImageName()))
}

// awaitImages waits until the CRI plugin has noticed images.
func (n *Node) awaitImages(t testing.TB, names []string) {
	t.Helper()
	for _, name := range names {
		Eventually(t, "the CRI plugin has the image "+name, func() error {
			return n.connect(t, CRINamespace, func(ctx context.Context, conn *grpc.ClientConn) error {
				response, err := cri.NewImageServiceClient(conn).ImageStatus(ctx, &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: name}})
				if err == nil && response.GetImage() == nil {
					err = errors.New("it does not have it")
				}
				return err
			})
		})
	}
}
