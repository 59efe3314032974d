//go:build e2e && linux

package bed

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/directx-nri/directx-nri/internal/testutil"
)

// Image is the image of the node's containers and sandboxes. Nothing is pulled: it is
// made of the machine's busybox.
const Image = "dx.test/busybox:1"

// imageScript makes an archive of one layer: busybox, a link for each applet and the usual directories.
const imageScript = `set -e
mkdir -p rootfs/bin rootfs/dev rootfs/etc rootfs/proc rootfs/sys rootfs/tmp rootfs/usr/lib rootfs/usr/local/bin rootfs/var
cp "$(command -v busybox)" rootfs/bin/busybox && chmod -R 755 rootfs
for applet in sh sleep cat ls stat mknod test echo kill touch env true false dd rm; do ln -s busybox rootfs/bin/$applet; done
tar --create --sort=name --mtime=@0 --owner=0 --group=0 --file layer.tar --directory rootfs .
digest=sha256:$(sha256sum layer.tar | cut -d ' ' -f 1)
cat >config.json <<EOF
{"architecture": "$ARCHITECTURE", "os": "linux", "config": $CONFIG,
 "rootfs": {"type": "layers", "diff_ids": ["$digest"]}}
EOF
echo '[{"Config": "config.json", "RepoTags": ["'"$NAME"'"], "Layers": ["layer.tar"]}]' >manifest.json
tar --create --file "$ARCHIVE" config.json layer.tar manifest.json
`

// ImportImage makes an image and gives it to each of containerd's namespaces.
func (n *Node) ImportImage(t testing.TB, name string, config ImageConfig) {
	t.Helper()
	archive := filepath.Join(n.Dir, "image.tar")
	testutil.NoError(t, WriteImage(archive, name, config))
	for _, namespace := range []string{PodNamespace, DefaultNamespace} {
		if out, err := n.ctr(namespace, "images", "import", "--snapshotter", snapshotter, archive); err != nil {
			t.Fatalf("import image %s: %v\n%s", name, err, out)
		}
	}
}

// ImageConfig is what images differ in.
type ImageConfig struct {
	Env    []string
	Labels map[string]string
}

// WriteImage writes a docker archive of one layer of the machine's busybox.
func WriteImage(path, name string, config ImageConfig) (err error) {
	dir, err := os.MkdirTemp(filepath.Dir(path), "image")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	data, err := json.Marshal(map[string]any{
		"Cmd": []string{"/bin/sleep", "2147483647"}, // For sandboxes.
		"Env": append([]string{"PATH=/bin"}, config.Env...), "Labels": config.Labels,
	})
	if err != nil {
		return err
	}
	script := exec.Command("sh", "-c", imageScript)
	script.Dir, script.Stderr = dir, os.Stderr
	script.Env = append(os.Environ(), "ARCHITECTURE="+runtime.GOARCH, "CONFIG="+string(data), "NAME="+name, "ARCHIVE="+path)
	if err := script.Run(); err != nil {
		return fmt.Errorf("make image %s: %w", name, err)
	}
	return nil
}
