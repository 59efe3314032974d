//go:build e2e && linux

package bed

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// Image is a directory with the programs of the product's image for Windows.
type Image string

// Program returns a program of the image.
func (i Image) Program(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(string(i), name))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// BuildImage builds the programs that the manifests run, with an os.RemoveAll that works
// under Wine. The image itself is checked by make release-test.
func (w *Wine) BuildImage(t testing.TB, version string) Image {
	t.Helper()
	dir := t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-buildvcs=false", "-overlay", removeAllOverlay(t),
		"-ldflags", "-s -w -X main.version="+version, "-o", dir, "./cmd/dxctl", "./cmd/directx-advertiser", "./cmd/containerd-shim-directx-v1")
	build.Dir = w.parts.Root
	build.Env = append(os.Environ(), "GOOS=windows", "GOARCH=amd64", "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the programs: %v\n%s", err, out)
	}
	return Image(dir)
}

// Volume is the volume of a ConfigMap, with links as the kubelet creates it. Programs
// under Wine, which has no links, see files and directories that change atomically.
// https://github.com/kubernetes/kubernetes/blob/v1.34.3/pkg/volume/util/atomic_writer.go
type Volume struct {
	dir     string
	version int
}

// NewVolume returns the volume of a ConfigMap with that data, in a directory of drive C:.
func (w *Wine) NewVolume(t testing.TB, path string, data map[string]string) *Volume {
	t.Helper()
	v := &Volume{dir: w.Linux(path)}
	v.Write(t, data)
	return v
}

// Write replaces the data by other data with the same names.
func (v *Volume) Write(t testing.TB, data map[string]string) {
	t.Helper()
	v.version++
	const link = "..data"
	version := fmt.Sprintf("..%d", v.version)
	err := os.MkdirAll(filepath.Join(v.dir, version), 0o755)
	for name, text := range data {
		err = errors.Join(err, os.WriteFile(filepath.Join(v.dir, version, name), []byte(text), 0o644)) //nolint:gosec // as the kubelet does
	}
	next := filepath.Join(v.dir, link+"_tmp")
	err = errors.Join(err, os.Symlink(version, next), os.Rename(next, filepath.Join(v.dir, link)))
	for name := range data {
		if v.version == 1 {
			err = errors.Join(err, os.Symlink(filepath.Join(link, name), filepath.Join(v.dir, name)))
		}
	}
	err = errors.Join(err, os.RemoveAll(filepath.Join(v.dir, fmt.Sprintf("..%d", v.version-1))))
	if err != nil {
		t.Fatalf("write the ConfigMap's volume: %v", err)
	}
}

// mountPoint is the environment variable for the directory of a container's files.
// https://kubernetes.io/docs/tasks/configure-pod-container/create-hostprocess-pod/#volume-mounts
const mountPoint = "CONTAINER_SANDBOX_MOUNT_POINT"

// HostProcesses is the directory of the HostProcess containers' files.
const HostProcesses = `C:\hpc`

// HostProcess returns a command that runs a container of a manifest's pod as the node
// would: a program of the image, in a directory with the image's files and the volumes.
// flags follow its own arguments.
func (n *Node) HostProcess(ctx context.Context, t testing.TB, pod string, image Image, volumes map[string]*Volume, c corev1.Container, flags ...string) *exec.Cmd {
	t.Helper()
	dir := HostProcesses + `\` + pod + "-" + c.Name
	if err := linkFiles(string(image), n.Linux(dir)); err != nil {
		t.Fatalf("mount the image: %v", err)
	}
	var inContainer []string // paths in the container, and those of this node
	for _, m := range c.VolumeMounts {
		volume, ok := volumes[m.Name]
		if !ok {
			t.Fatalf("container %s mounts %s, which is not a volume of its pod", c.Name, m.Name)
		}
		path := strings.ReplaceAll(m.MountPath, "/", `\`)
		if err := os.Symlink(volume.dir, n.Linux(dir+path)); err != nil {
			t.Fatalf("mount volume %s: %v", m.Name, err)
		}
		inContainer = append(inContainer, `C:`+path, dir+path)
	}
	if len(c.Command) == 0 {
		t.Fatalf("container %s has no command", c.Name)
	}
	var line []string
	for _, word := range slices.Concat(c.Command, c.Args) {
		line = append(line, strings.NewReplacer(append(inContainer, "%"+mountPoint+"%", dir)...).Replace(word))
	}
	cmd := n.Command(ctx, line[0], append(line[1:], flags...)...)
	cmd.Env = append(cmd.Env, mountPoint+"="+dir)
	return cmd
}

// linkFiles creates a directory with hard links to the files of another.
func linkFiles(from, to string) error {
	return filepath.WalkDir(from, func(path string, entry os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		below, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		if entry.IsDir() {
			return os.MkdirAll(filepath.Join(to, below), 0o755)
		}
		return copyFile(path, filepath.Join(to, below))
	})
}
