//go:build e2e && windows

package windows

import (
	"path/filepath"
	"testing"

	"github.com/directx-nri/directx-nri/test/windows/bed"
)

// TestImage unpacks the product's image, as a pull does, up to HCS's import of its layer. The
// double refuses a layer without the directory Hives, as HCS does.
func TestImage(t *testing.T) {
	t.Parallel()
	if !machine.Doubled {
		t.Skip("the image has the base of the suite under Wine")
	}
	n := start(t, bed.Options{Name: "image"})
	if out, err := n.Ctr("images", "import", n.Executable("product.tar")); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, name := range []string{`Files\dxctl.exe`, `Files\doc\LICENSE`, "Hives"} {
		if found, err := filepath.Glob(n.Path("root", "io.containerd.snapshotter.v1.windows", "snapshots", "*", name)); err != nil || len(found) != 1 {
			t.Errorf("%s is unpacked as %q, %v", name, found, err)
		}
	}
}
