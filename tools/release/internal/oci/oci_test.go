package oci

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	ggcrlayout "github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"directx-nri/tools/release/internal/files"
)

const ref = "docker.io/library/thing:v1.2.3"

func someImage(t *testing.T, arch string) Image {
	t.Helper()
	at := time.Unix(1_700_000_000, 0)
	var b bytes.Buffer
	if err := files.WriteTar(&b, []files.File{{Name: "thing", Mode: files.Executable, Data: []byte(arch)}}, at); err != nil {
		t.Fatal(err)
	}
	layer, err := NewLayer(b.Bytes(), "a test")
	if err != nil {
		t.Fatal(err)
	}
	return Image{
		Platform:    ocispec.Platform{OS: "linux", Architecture: arch},
		Config:      ocispec.ImageConfig{Entrypoint: []string{"/thing"}, Labels: map[string]string{"a": "b"}},
		Annotations: map[string]string{"c": "d"},
		Created:     at,
		Layers:      []Layer{layer},
	}
}

// extract puts an archive into a folder, for readers of layouts.
func extract(t *testing.T, archive []byte) string {
	t.Helper()
	dir := t.TempDir()
	r := tar.NewReader(bytes.NewReader(archive))
	for {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return dir
		}
		if err != nil {
			t.Fatal(err)
		}
		target := filepath.Join(dir, header.Name)
		if header.Typeflag == tar.TypeDir {
			if err := os.MkdirAll(target, 0o755); err != nil {
				t.Fatal(err)
			}
			continue
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(target, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// only returns the one entry of an archive's index.
func only(t *testing.T, archive []byte) (v1.ImageIndex, v1.Descriptor) {
	t.Helper()
	index, err := ggcrlayout.ImageIndexFromPath(extract(t, archive))
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(index); err != nil {
		t.Errorf("go-containerregistry finds the layout wrong: %v", err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if len(manifest.Manifests) != 1 {
		t.Fatalf("the layout has %d entries, want one", len(manifest.Manifests))
	}
	entry := manifest.Manifests[0]
	for _, key := range []string{"org.opencontainers.image.ref.name", "io.containerd.image.name"} {
		if got := entry.Annotations[key]; got != ref {
			t.Errorf("%s is %q, want %q", key, got, ref)
		}
	}
	return index, entry
}

func TestArchiveOfOneImageIsValid(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	if err := WriteImage(&b, ref, someImage(t, "amd64")); err != nil {
		t.Fatal(err)
	}
	index, entry := only(t, b.Bytes())
	image, err := index.Image(entry.Digest)
	if err != nil {
		t.Fatal(err)
	}
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if config.OS != "linux" || config.Architecture != "amd64" || config.Config.Labels["a"] != "b" || len(config.History) != 1 {
		t.Errorf("the configuration is %+v", config)
	}
}

// Docker before 25 reads the list of `docker save` alone.
func TestArchiveOfOneImageIsOneForOldDockerToo(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	if err := WriteImage(&b, ref, someImage(t, "amd64")); err != nil {
		t.Fatal(err)
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil }
	list, err := tarball.LoadManifest(open)
	if err != nil {
		t.Fatal(err)
	}
	if len(list) != 1 || len(list[0].RepoTags) != 1 || list[0].RepoTags[0] != ref {
		t.Errorf("the list is %+v, want one image named %s", list, ref)
	}
	image, err := tarball.Image(open, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Image(image); err != nil {
		t.Error(err)
	}
}

func TestIndexHasAnImageForEachPlatform(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	if err := WriteIndex(&b, ref, []Image{someImage(t, "amd64"), someImage(t, "arm64")}); err != nil {
		t.Fatal(err)
	}
	outer, entry := only(t, b.Bytes())
	index, err := outer.ImageIndex(entry.Digest)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	var platforms []string
	for _, image := range manifest.Manifests {
		platforms = append(platforms, image.Platform.String())
	}
	if len(platforms) != 2 || platforms[0] != "linux/amd64" || platforms[1] != "linux/arm64" {
		t.Errorf("the index has %q", platforms)
	}
	if err := WriteIndex(io.Discard, ref, nil); err == nil {
		t.Error("an index of nothing was written")
	}
}

func TestSameImageIsSameArchive(t *testing.T) {
	t.Parallel()
	var one, other bytes.Buffer
	for _, b := range []*bytes.Buffer{&one, &other} {
		if err := WriteIndex(b, ref, []Image{someImage(t, "amd64"), someImage(t, "arm64")}); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(one.Bytes(), other.Bytes()) {
		t.Error("two archives of the same images differ")
	}
}
