//go:build e2e && linux

package bed

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
)

// imageName is the node's image. Its command is [Forever].
const imageName = "localhost/base:1"

// Forever is a command line that runs until it is killed. Any other ends immediately
// (../doubles/vmcompute.c).
const Forever = "forever"

// ImportImage imports an image for `ctr run`. The snapshotter considers a layer unpacked
// by its key, and needs the disk of the container's own layer, which HCS creates on
// Windows.
func (n *Node) ImportImage(t testing.TB) {
	t.Helper()
	layer := tarball(t, map[string][]byte{"Files/base.txt": []byte("base")})
	digest := sha256.Sum256(layer)
	diff := "sha256:" + hex.EncodeToString(digest[:])
	config := marshal(t, map[string]any{
		"architecture": "amd64", "os": "windows",
		"config": map[string]any{"Cmd": []string{Forever}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{diff}},
	})
	manifest := marshal(t, []map[string]any{{"Config": "config.json", "RepoTags": []string{imageName}, "Layers": []string{"layer.tar"}}})
	n.File(t, "image.tar", string(tarball(t, map[string][]byte{"config.json": config, "layer.tar": layer, "manifest.json": manifest})))
	for _, args := range [][]string{
		{"images", "import", "--no-unpack", n.Path("image.tar")},
		{"snapshots", "prepare", "extract-base"},
		{"snapshots", "commit", diff, "extract-base"},
		{"snapshots", "label", diff, "containerd.io/gc.root=1"},
	} {
		if _, err := n.Ctr(t, args...); err != nil {
			t.Fatalf("import the image: ctr %v: %v", args, err)
		}
	}
	layers, err := filepath.Glob(n.Linux(n.Path("root", "io.containerd.snapshotter.v1.windows", "snapshots", "*")))
	if err != nil || len(layers) != 1 {
		t.Fatalf("import the image: its layer is in %v, %v", layers, err)
	}
	if err := os.WriteFile(filepath.Join(layers[0], "blank.vhdx"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

func tarball(t testing.TB, files map[string][]byte) []byte {
	t.Helper()
	var buffer bytes.Buffer
	w := tar.NewWriter(&buffer)
	for name, data := range files {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(data))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buffer.Bytes()
}

func marshal(t testing.TB, v any) []byte {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
