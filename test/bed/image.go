//go:build e2e && linux

package bed

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
)

// Image is the image of the node's containers and sandboxes. Nothing is pulled: it is
// made of the machine's busybox.
const Image = "dx.test/busybox:1"

// applets are the commands of the image.
var applets = []string{"sh", "sleep", "cat", "ls", "stat", "mknod", "test", "echo", "kill", "touch", "env", "true", "false", "dd", "rm"}

// importImage makes the image and gives it to containerd, to each of its namespaces.
func (n *Node) importImage(t testing.TB) {
	t.Helper()
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(busybox)
	if err != nil {
		t.Fatal(err)
	}
	archive := filepath.Join(n.Dir, "image.tar")
	n.layer, err = WriteImage(archive, Image, []string{"/bin/sleep", "2147483647"}, program)
	if err != nil {
		t.Fatalf("make image %s: %v", Image, err)
	}
	for _, namespace := range []string{PodNamespace, DefaultNamespace} {
		out, err := exec.Command(n.parts.Stock("ctr"), "--address", n.Address(),
			"--namespace", namespace, "images", "import", "--snapshotter", snapshotter, archive).CombinedOutput()
		if err != nil {
			t.Fatalf("import image %s: %v\n%s", Image, err, out)
		}
	}
}

// WriteImage writes a docker archive of one layer: busybox, a link for each
// applet and the usual directories. It returns the layer's digest, which with one
// layer is also the name of its snapshot.
func WriteImage(path, name string, command []string, busybox []byte) (digest string, err error) {
	script := `mkdir -p rootfs/bin rootfs/dev rootfs/etc rootfs/proc rootfs/sys rootfs/tmp rootfs/usr/lib rootfs/var
mv busybox rootfs/bin && chmod -R 755 rootfs
for applet; do ln -s busybox rootfs/bin/$applet; done
exec tar --create --sort=name --mtime=@0 --owner=0 --group=0 --file layer.tar --directory rootfs .`
	dir, err := os.MkdirTemp(filepath.Dir(path), "image")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	run := func(name string, args ...string) error {
		cmd := exec.Command(name, args...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}
	if err := os.WriteFile(filepath.Join(dir, "busybox"), busybox, 0o755); err != nil {
		return "", err
	}
	if err := run("sh", append([]string{"-ec", script, "sh"}, applets...)...); err != nil {
		return "", err
	}
	layer, err := os.ReadFile(filepath.Join(dir, "layer.tar"))
	if err != nil {
		return "", err
	}
	digest = fmt.Sprintf("sha256:%x", sha256.Sum256(layer))
	for file, content := range map[string]any{
		"config.json": map[string]any{
			"architecture": runtime.GOARCH,
			"os":           "linux",
			"config":       map[string]any{"Cmd": command, "Env": []string{"PATH=/bin"}},
			"rootfs":       map[string]any{"type": "layers", "diff_ids": []string{digest}},
		},
		"manifest.json": []map[string]any{{"Config": "config.json", "RepoTags": []string{name}, "Layers": []string{"layer.tar"}}},
	} {
		data, err := json.Marshal(content)
		if err != nil {
			return "", err
		}
		if err := os.WriteFile(filepath.Join(dir, file), data, 0o644); err != nil {
			return "", err
		}
	}
	return digest, run("tar", "--create", "--file", path, "config.json", "layer.tar", "manifest.json")
}
