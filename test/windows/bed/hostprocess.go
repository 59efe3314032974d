//go:build e2e && linux

package bed

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	suite "directx-nri/test/bed"
)

// Image is the product's image for Windows, unpacked.
type Image struct{ files string } // folder on this system

// Program returns a program of the image.
func (i Image) Program(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(i.files, name))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// BuildImage builds the programs and the image of them by the release tool, as
// `make images` does, but with an os.RemoveAll that works under Wine.
func (w *Wine) BuildImage(t testing.TB, version string) Image {
	t.Helper()
	dir := t.TempDir()
	archive, err := suite.BuildImage(t.Context(), w.parts.root, dir, version, "windows-amd64", "-overlay", removal(t.Context(), t))
	if err != nil {
		t.Fatalf("make the image: %v", err)
	}
	image := Image{files: filepath.Join(dir, "files")}
	if err := image.unpack(archive); err != nil {
		t.Fatalf("unpack the image: %v", err)
	}
	return image
}

// unpack reads the files of an OCI archive.
func (i Image) unpack(archive string) error {
	type descriptor struct{ Digest string }
	var index struct{ Manifests []descriptor }
	decode := func(into any) func(io.Reader) error {
		return func(r io.Reader) error { return json.NewDecoder(r).Decode(into) }
	}
	blob := func(d descriptor) string { return "blobs/" + strings.Replace(d.Digest, ":", "/", 1) }
	if err := inArchive(archive, "index.json", decode(&index)); err != nil {
		return err
	}
	var manifest struct{ Layers []descriptor }
	if err := inArchive(archive, blob(index.Manifests[0]), decode(&manifest)); err != nil {
		return err
	}
	for _, layer := range manifest.Layers {
		if err := inArchive(archive, blob(layer), i.unpackLayer); err != nil {
			return err
		}
	}
	return nil
}

func (i Image) unpackLayer(compressed io.Reader) error {
	plain, err := gzip.NewReader(compressed)
	if err != nil {
		return err
	}
	return eachFile(plain, func(name string, r io.Reader) error {
		path := filepath.Join(i.files, filepath.FromSlash(strings.TrimPrefix(name, "Files/")))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, r)
		return errors.Join(err, f.Close())
	})
}

// inArchive calls read with the file of that name in a tar archive.
func inArchive(archive, name string, read func(io.Reader) error) error {
	f, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer f.Close()
	found := false
	err = eachFile(f, func(file string, r io.Reader) error {
		if file != name {
			return nil
		}
		found = true
		return read(r)
	})
	if err == nil && !found {
		err = fmt.Errorf("there is no %s in %s", name, archive)
	}
	return err
}

// eachFile calls do with each regular file of a tar archive.
func eachFile(archive io.Reader, do func(name string, r io.Reader) error) error {
	r := tar.NewReader(archive)
	for {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if header.Typeflag != tar.TypeReg {
			continue
		}
		if err := do(header.Name, r); err != nil {
			return err
		}
	}
}

// Volume is the volume of a ConfigMap. It is as the kubelet makes it, with links.
// They are of this system: programs under Wine, which has none, see files and folders
// in their place, which change all at once.
// https://github.com/kubernetes/kubernetes/blob/v1.34.3/pkg/volume/util/atomic_writer.go
type Volume struct {
	folder  string // on this system
	version int
}

// NewVolume returns the volume of a ConfigMap with that data, in a folder of drive
// C:.
func (w *Wine) NewVolume(t testing.TB, path string, data map[string]string) *Volume {
	t.Helper()
	v := &Volume{folder: w.Linux(path)}
	v.Write(t, data)
	return v
}

// Write replaces the data by other data with the same names.
func (v *Volume) Write(t testing.TB, data map[string]string) {
	t.Helper()
	v.version++
	const link = "..data"
	version := fmt.Sprintf("..%d", v.version)
	err := os.MkdirAll(filepath.Join(v.folder, version), 0o755)
	for name, text := range data {
		err = errors.Join(err, os.WriteFile(filepath.Join(v.folder, version, name), []byte(text), 0o644)) //nolint:gosec // as the kubelet does
	}
	next := filepath.Join(v.folder, link+"_tmp")
	err = errors.Join(err, os.Symlink(version, next), os.Rename(next, filepath.Join(v.folder, link)))
	for name := range data {
		if v.version == 1 {
			err = errors.Join(err, os.Symlink(filepath.Join(link, name), filepath.Join(v.folder, name)))
		}
	}
	err = errors.Join(err, os.RemoveAll(filepath.Join(v.folder, fmt.Sprintf("..%d", v.version-1))))
	if err != nil {
		t.Fatalf("write the ConfigMap's volume: %v", err)
	}
}

// mountPoint is what a container is told its image's files are in.
// https://kubernetes.io/docs/tasks/configure-pod-container/create-hostprocess-pod/#volume-mounts
const mountPoint = "CONTAINER_SANDBOX_MOUNT_POINT"

// HostProcesses is the folder of all that HostProcess containers have of their own.
const HostProcesses = `C:\hpc`

// HostProcess returns a container of a manifest's pod as the node starts it: a
// program of the image, in a folder with the image's files and the volumes, named
// by what its pod and itself are called. flags are added to its own.
func (n *Node) HostProcess(ctx context.Context, t testing.TB, pod string, image Image, volumes map[string]*Volume, c corev1.Container, flags ...string) *exec.Cmd {
	t.Helper()
	folder := HostProcesses + `\` + pod + "-" + c.Name
	if err := linkFiles(image.files, n.Linux(folder)); err != nil {
		t.Fatalf("mount the image: %v", err)
	}
	for _, m := range c.VolumeMounts {
		volume, ok := volumes[m.Name]
		if !ok {
			t.Fatalf("container %s mounts %s, which is no volume of its pod", c.Name, m.Name)
		}
		if err := os.Symlink(volume.folder, n.Linux(folder+strings.ReplaceAll(m.MountPath, "/", `\`))); err != nil {
			t.Fatalf("mount volume %s: %v", m.Name, err)
		}
	}
	var line []string
	for _, word := range slices.Concat(c.Command, c.Args) {
		line = append(line, strings.ReplaceAll(word, "%"+mountPoint+"%", folder))
	}
	if len(c.Command) == 0 {
		t.Fatalf("container %s has no command", c.Name)
	}
	cmd := n.Command(ctx, line[0], append(line[1:], flags...)...)
	cmd.Env = append(cmd.Env, mountPoint+"="+folder)
	if n.options.HCSAnswers {
		cmd.Env = append(cmd.Env, hcsAnswers)
	}
	return cmd
}

// linkFiles makes a folder with the files of another.
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
