// Package oci writes images as archives of OCI image layouts, which containerd
// (`ctr images import`), Docker, Podman and skopeo read.
//
// The JSON types are the specification's own. What is written around them is
// little, and each byte of it has to be ours for archives to be reproducible, so
// no image builder stands between.
//
// https://github.com/opencontainers/image-spec/blob/v1.1.1/image-layout.md
package oci

import (
	"bytes"
	"compress/gzip"
	_ "crypto/sha256" // go-digest takes the algorithms that are linked in.
	"encoding/json"
	"fmt"
	"io"
	"path"
	"slices"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"directx-nri/tools/release/internal/files"
)

// imageName is the annotation by which containerd names what it imports.
const imageName = "io.containerd.image.name"

// Layer is one compressed layer.
type Layer struct {
	blob      []byte
	diffID    digest.Digest // of the layer before compression
	createdBy string
}

// NewLayer compresses a layer's tar archive. createdBy says in the image's
// history where it comes from.
func NewLayer(tarball []byte, createdBy string) (Layer, error) {
	var compressed bytes.Buffer
	z := gzip.NewWriter(&compressed)
	if _, err := z.Write(tarball); err != nil {
		return Layer{}, fmt.Errorf("compressing a layer: %w", err)
	}
	if err := z.Close(); err != nil {
		return Layer{}, fmt.Errorf("compressing a layer: %w", err)
	}
	return Layer{blob: compressed.Bytes(), diffID: digest.FromBytes(tarball), createdBy: createdBy}, nil
}

// Image is one image for one platform.
type Image struct {
	Platform    ocispec.Platform
	Config      ocispec.ImageConfig
	Annotations map[string]string // of its manifest
	Created     time.Time
	Layers      []Layer // the lowest first
}

// layout collects the blobs of an archive.
type layout struct{ blobs map[digest.Digest][]byte }

func (l layout) add(mediaType string, blob []byte) ocispec.Descriptor {
	sum := digest.FromBytes(blob)
	l.blobs[sum] = blob
	return ocispec.Descriptor{MediaType: mediaType, Digest: sum, Size: int64(len(blob))}
}

func (l layout) addJSON(mediaType string, value any) (ocispec.Descriptor, error) {
	blob, err := json.Marshal(value)
	if err != nil {
		return ocispec.Descriptor{}, fmt.Errorf("encoding %s: %w", mediaType, err)
	}
	return l.add(mediaType, blob), nil
}

// image adds an image and returns its manifest and the manifest's descriptor.
func (l layout) image(image Image) (ocispec.Manifest, ocispec.Descriptor, error) {
	created := image.Created.UTC()
	config := ocispec.Image{
		Created:  &created,
		Platform: image.Platform,
		Config:   image.Config,
		RootFS:   ocispec.RootFS{Type: "layers"},
	}
	manifest := ocispec.Manifest{
		Versioned:   specs.Versioned{SchemaVersion: 2},
		MediaType:   ocispec.MediaTypeImageManifest,
		Annotations: image.Annotations,
	}
	for _, layer := range image.Layers {
		manifest.Layers = append(manifest.Layers, l.add(ocispec.MediaTypeImageLayerGzip, layer.blob))
		config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, layer.diffID)
		config.History = append(config.History, ocispec.History{Created: &created, CreatedBy: layer.createdBy})
	}
	var err error
	if manifest.Config, err = l.addJSON(ocispec.MediaTypeImageConfig, config); err != nil {
		return ocispec.Manifest{}, ocispec.Descriptor{}, err
	}
	descriptor, err := l.addJSON(ocispec.MediaTypeImageManifest, manifest)
	if err != nil {
		return ocispec.Manifest{}, ocispec.Descriptor{}, err
	}
	platform := image.Platform
	descriptor.Platform = &platform
	return manifest, descriptor, nil
}

// WriteImage writes an archive of one image, which ref names. It has the list
// of `docker save` in it too, for Docker before 25.
func WriteImage(w io.Writer, ref string, image Image) error {
	l := layout{blobs: make(map[digest.Digest][]byte)}
	manifest, descriptor, err := l.image(image)
	if err != nil {
		return err
	}
	saved := dockerImage{Config: blobName(manifest.Config.Digest), RepoTags: []string{ref}}
	for _, layer := range manifest.Layers {
		saved.Layers = append(saved.Layers, blobName(layer.Digest))
	}
	list, err := json.Marshal([]dockerImage{saved})
	if err != nil {
		return err
	}
	return l.write(w, named(descriptor, ref), image.Created, files.File{Name: "manifest.json", Mode: files.Plain, Data: list})
}

// dockerImage is an entry of the manifest.json that Docker reads.
type dockerImage struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// WriteIndex writes an archive of several images behind one index, which ref
// names.
func WriteIndex(w io.Writer, ref string, images []Image) error {
	if len(images) == 0 {
		return fmt.Errorf("an index takes an image at least")
	}
	l := layout{blobs: make(map[digest.Digest][]byte)}
	index := ocispec.Index{
		Versioned:   specs.Versioned{SchemaVersion: 2},
		MediaType:   ocispec.MediaTypeImageIndex,
		Annotations: images[0].Annotations,
	}
	for _, image := range images {
		_, descriptor, err := l.image(image)
		if err != nil {
			return err
		}
		index.Manifests = append(index.Manifests, descriptor)
	}
	descriptor, err := l.addJSON(ocispec.MediaTypeImageIndex, index)
	if err != nil {
		return err
	}
	return l.write(w, named(descriptor, ref), images[0].Created)
}

func named(descriptor ocispec.Descriptor, ref string) ocispec.Descriptor {
	descriptor.Annotations = map[string]string{ocispec.AnnotationRefName: ref, imageName: ref}
	return descriptor
}

// write writes the layout with one entry in its index.
func (l layout) write(w io.Writer, entry ocispec.Descriptor, at time.Time, more ...files.File) error {
	index, err := json.Marshal(ocispec.Index{
		Versioned: specs.Versioned{SchemaVersion: 2},
		MediaType: ocispec.MediaTypeImageIndex,
		Manifests: []ocispec.Descriptor{entry},
	})
	if err != nil {
		return err
	}
	version, err := json.Marshal(ocispec.ImageLayout{Version: ocispec.ImageLayoutVersion})
	if err != nil {
		return err
	}
	list := slices.Concat(more, []files.File{
		{Name: ocispec.ImageIndexFile, Mode: files.Plain, Data: index},
		{Name: ocispec.ImageLayoutFile, Mode: files.Plain, Data: version},
	})
	for sum, blob := range l.blobs {
		list = append(list, files.File{Name: blobName(sum), Mode: files.Plain, Data: blob})
	}
	return files.WriteTar(w, list, at)
}

func blobName(sum digest.Digest) string {
	return path.Join(ocispec.ImageBlobsDir, sum.Algorithm().String(), sum.Encoded())
}
