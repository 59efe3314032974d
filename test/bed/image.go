//go:build e2e && linux

package bed

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
)

// The images of the node. Nothing is pulled: they are made of the machine's
// busybox.
const (
	Image      = "dx.test/busybox:1"
	pauseImage = "dx.test/pause:1"
)

// applets are the commands of the image.
var applets = []string{"sh", "sleep", "cat", "ls", "stat", "mknod", "test", "echo", "kill", "touch", "env", "true", "false", "dd", "rm"}

// importImages makes the images and gives them to containerd, to each of its
// namespaces that need them.
func (n *Node) importImages(t testing.TB) {
	t.Helper()
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(busybox)
	if err != nil {
		t.Fatal(err)
	}
	for _, image := range []struct {
		name       string
		command    []string
		namespaces []string
	}{
		{Image, []string{"/bin/sh"}, []string{PodNamespace, DefaultNamespace}},
		{pauseImage, []string{"/bin/sleep", "2147483647"}, []string{PodNamespace}},
	} {
		archive := filepath.Join(n.Dir, "image.tar")
		n.layer, err = WriteImage(archive, image.name, image.command, program)
		if err != nil {
			t.Fatalf("make image %s: %v", image.name, err)
		}
		for _, namespace := range image.namespaces {
			out, err := exec.Command(n.parts.Stock("ctr"), "--address", filepath.Join(n.Dir, containerdAddress),
				"--namespace", namespace, "images", "import", "--snapshotter", snapshotter, archive).CombinedOutput()
			if err != nil {
				t.Fatalf("import image %s: %v\n%s", image.name, err, out)
			}
		}
		if err := os.Remove(archive); err != nil {
			t.Fatal(err)
		}
	}
}

// WriteImage writes a docker archive of one layer: busybox, a link for each
// applet and the usual directories. It returns the layer's digest, which with one
// layer is also the name of its snapshot.
func WriteImage(path, name string, command []string, busybox []byte) (digest string, err error) {
	layer, err := writeTar(filepath.Join(filepath.Dir(path), "layer.tar"), func(w *tar.Writer) error {
		for _, dir := range []string{"bin", "dev", "etc", "proc", "sys", "tmp", "usr/lib", "var"} {
			if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755}); err != nil {
				return err
			}
		}
		if err := addFile(w, "bin/busybox", 0o755, busybox); err != nil {
			return err
		}
		for _, applet := range applets {
			if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: "bin/" + applet, Linkname: "busybox"}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	digest = fmt.Sprintf("sha256:%x", sha256.Sum256(layer))
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH,
		"os":           "linux",
		"config":       map[string]any{"Cmd": command, "Env": []string{"PATH=/bin"}},
		"rootfs":       map[string]any{"type": "layers", "diff_ids": []string{digest}},
	})
	if err != nil {
		return "", err
	}
	manifest, err := json.Marshal([]map[string]any{{
		"Config": "config.json", "RepoTags": []string{name}, "Layers": []string{"layer.tar"},
	}})
	if err != nil {
		return "", err
	}
	_, err = writeTar(path, func(w *tar.Writer) error {
		for _, file := range []struct {
			name string
			data []byte
		}{{"config.json", config}, {"layer.tar", layer}, {"manifest.json", manifest}} {
			if err := addFile(w, file.name, 0o644, file.data); err != nil {
				return err
			}
		}
		return nil
	})
	return digest, err
}

// writeTar writes a tar file and returns its content.
func writeTar(path string, fill func(*tar.Writer) error) ([]byte, error) {
	file, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	w := tar.NewWriter(file)
	if err := fill(w); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return os.ReadFile(path)
}

func addFile(w *tar.Writer, name string, mode int64, data []byte) error {
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: int64(len(data))}); err != nil {
		return err
	}
	_, err := w.Write(data)
	return err
}
