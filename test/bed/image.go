//go:build e2e && linux

package bed

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/directx-nri/directx-nri/internal/testutil"
)

// Image is the image of the node's containers and sandboxes. Nothing is pulled: it is
// made of the machine's busybox.
const Image = "dx.test/busybox:1"

// imageScript makes an archive of one layer: busybox from the standard input, a link for
// each applet and the usual directories.
const imageScript = `set -e
mkdir -p rootfs/bin rootfs/dev rootfs/etc rootfs/proc rootfs/sys rootfs/tmp rootfs/usr/lib rootfs/usr/local/bin rootfs/var
cat >rootfs/bin/busybox && chmod -R 755 rootfs
for applet in sh sleep cat ls stat mknod test echo kill touch env true false dd rm; do ln -s busybox rootfs/bin/$applet; done
tar --create --sort=name --mtime=@0 --owner=0 --group=0 --file layer.tar --directory rootfs .
digest=sha256:$(sha256sum layer.tar | cut -d ' ' -f 1)
cat >config.json <<EOF
{"architecture": "$ARCHITECTURE", "os": "linux", "config": {"Cmd": $COMMAND, "Env": ["PATH=/bin"]},
 "rootfs": {"type": "layers", "diff_ids": ["$digest"]}}
EOF
echo '[{"Config": "config.json", "RepoTags": ["'"$NAME"'"], "Layers": ["layer.tar"]}]' >manifest.json
tar --create --file "$ARCHIVE" config.json layer.tar manifest.json
echo $digest
`

// importImage makes the image and gives it to containerd, to each of its namespaces.
func (n *Node) importImage(t testing.TB) {
	t.Helper()
	busybox, err := exec.LookPath("busybox")
	testutil.NoError(t, err)
	archive := filepath.Join(n.Dir, "image.tar")
	n.layer, err = WriteImage(archive, Image, []string{"/bin/sleep", "2147483647"}, ReadFile(t, busybox))
	testutil.NoError(t, err)
	for _, namespace := range []string{PodNamespace, DefaultNamespace} {
		if out, err := n.ctr(namespace, "images", "import", "--snapshotter", snapshotter, archive); err != nil {
			t.Fatalf("import image %s: %v\n%s", Image, err, out)
		}
	}
}

// WriteImage writes a docker archive of one layer of busybox. It returns the layer's
// digest, which with one layer is also the name of its snapshot.
func WriteImage(path, name string, command []string, busybox []byte) (digest string, err error) {
	dir, err := os.MkdirTemp(filepath.Dir(path), "image")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	arguments, err := json.Marshal(command)
	if err != nil {
		return "", err
	}
	script := exec.Command("sh", "-c", imageScript)
	script.Dir, script.Stdin, script.Stderr = dir, bytes.NewReader(busybox), os.Stderr
	script.Env = append(os.Environ(), "ARCHITECTURE="+runtime.GOARCH, "COMMAND="+string(arguments), "NAME="+name, "ARCHIVE="+path)
	out, err := script.Output()
	if err != nil {
		return "", fmt.Errorf("make image %s: %w", name, err)
	}
	return strings.TrimSpace(string(out)), nil
}
