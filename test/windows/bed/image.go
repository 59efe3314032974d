//go:build e2e && windows

package bed

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/windows"

	"github.com/directx-nri/directx-nri/internal/testutil"
)

// imageName returns the node's image: on Windows itself, the base image for its build.
func (m *Machine) imageName() string {
	if m.Doubled {
		return "localhost/base:1"
	}
	release := map[uint32]string{17763: "ltsc2019", 20348: "ltsc2022", 26100: "ltsc2025"}[windows.RtlGetVersion().BuildNumber]
	return "mcr.microsoft.com/windows/nanoserver:" + release
}

// pull pulls the image on Windows itself and returns the key of its snapshot.
func (n *Node) pull() (chain string, err error) {
	out, err := n.ctr(10*stepTimeout, "images", "pull", "--local", "--print-chainid", n.imageName())
	_, chain, _ = strings.Cut(out, "image chain ID: ")
	return strings.TrimSpace(chain), err
}

// snapshot creates a container's layers of the image and returns their paths.
func (n *Node) snapshot(t testing.TB, id string) []string {
	t.Helper()
	chain, err := n.image()
	if err != nil {
		t.Fatalf("pull the image: %v", err)
	}
	out, err := n.Ctr("snapshots", "prepare", "--mounts", "spec-"+id, chain)
	if err != nil {
		t.Fatalf("create the layers of %s: %v", id, err)
	}
	mounts := Decode[[]specs.Mount](t, out)
	if len(mounts) != 1 {
		t.Fatalf("the layers of %s are %s, want one mount", id, out)
	}
	var layers []string
	for _, option := range mounts[0].Options {
		if parents, ok := strings.CutPrefix(option, "parentLayerPaths="); ok {
			layers = Decode[[]string](t, parents)
		}
	}
	return append(layers, mounts[0].Source)
}

// ImportImage imports an image for `ctr run`. Under Wine it is one of ../wine.sh. The
// snapshotter considers a layer unpacked by its key, and needs the disk of the container's
// own layer, which HCS creates on Windows.
func (n *Node) ImportImage(t testing.TB) {
	t.Helper()
	if !n.Doubled {
		if _, err := n.image(); err != nil {
			t.Fatalf("pull the image: %v", err)
		}
		return
	}
	diff := "sha256:" + strings.TrimSpace(string(ReadFile(t, n.Executable("image.sha256"))))
	for _, args := range [][]string{
		{"images", "import", "--no-unpack", n.Executable("image.tar")},
		{"snapshots", "prepare", "extract-base"},
		{"snapshots", "commit", diff, "extract-base"},
		{"snapshots", "label", diff, "containerd.io/gc.root=1"},
	} {
		if _, err := n.Ctr(args...); err != nil {
			t.Fatalf("import the image: ctr %v: %v", args, err)
		}
	}
	layers, err := filepath.Glob(n.Path("root", "io.containerd.snapshotter.v1.windows", "snapshots", "*"))
	if err != nil || len(layers) != 1 {
		t.Fatalf("import the image: its layer is in %v, %v", layers, err)
	}
	testutil.WriteFile(t, filepath.Join(layers[0], "blank.vhdx"), "", 0o600)
}
