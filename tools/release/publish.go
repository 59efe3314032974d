package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"go.yaml.in/yaml/v3"
)

// Media types of a chart. https://helm.sh/docs/topics/registries/#helm-chart-manifest
const (
	chartConfig  types.MediaType = "application/vnd.cncf.helm.config.v1+json"
	chartContent types.MediaType = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
)

// artifact is what a registry has by a name.
type artifact struct {
	tag     name.Tag
	content remote.Taggable
	digest  v1.Hash // of content
}

// publish pushes the image and the chart of the release in dir, unless the registry has others of that version, and
// writes the names and digests that a signature is for. A release that failed halfway can be published again.
func (r release) publish(ctx context.Context, dir, charts string, w io.Writer) error {
	scratch, err := os.MkdirTemp("", "release")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch) //nolint:errcheck // What is left in the temporary directory does no harm.
	image, err := readImage(filepath.Join(dir, "directx-nri-image-"+r.version+".tar"), scratch)
	if err != nil {
		return err
	}
	number := strings.TrimPrefix(r.version, "v")
	chart, err := readChart(filepath.Join(dir, "directx-nri-"+number+".tgz"))
	if err != nil {
		return err
	}
	imageArtifact, imageErr := newArtifact(r.image, image)
	chartArtifact, chartErr := newArtifact(charts+"/directx-nri:"+number, chart)
	if err := errors.Join(imageErr, chartErr); err != nil {
		return err
	}
	options := []remote.Option{remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)}
	if err := errors.Join(imageArtifact.check(options), chartArtifact.check(options)); err != nil {
		return err
	}
	for _, layer := range chart.layers {
		if err := remote.WriteLayer(chartArtifact.tag.Repository, layer, options...); err != nil {
			return fmt.Errorf("push to %s: %w", chartArtifact.tag, err)
		}
	}
	for _, a := range []artifact{imageArtifact, chartArtifact} {
		if err := remote.Push(a.tag, a.content, options...); err != nil {
			return fmt.Errorf("push %s: %w", a.tag, err)
		}
	}
	_, err = fmt.Fprintf(w, "image=%s\nimage_digest=%s\nchart=%s\nchart_digest=%s\n",
		imageArtifact.tag.Repository, imageArtifact.digest, chartArtifact.tag.Repository, chartArtifact.digest)
	return err
}

func newArtifact(tag string, content remote.Taggable) (artifact, error) {
	parsed, err := name.NewTag(tag, name.StrictValidation)
	if err != nil {
		return artifact{}, err
	}
	manifest, err := content.RawManifest()
	if err != nil {
		return artifact{}, err
	}
	digest, _, err := v1.SHA256(bytes.NewReader(manifest))
	return artifact{tag: parsed, content: content, digest: digest}, err
}

// check returns an error unless the registry has nothing by the tag, or this artifact. Only status 404 means that it
// has nothing: after any other error, a push could replace a release.
func (a artifact) check(options []remote.Option) error {
	existing, err := remote.Head(a.tag, options...)
	var failure *transport.Error
	switch {
	case errors.As(err, &failure) && failure.StatusCode == http.StatusNotFound:
		return nil
	case err != nil:
		return fmt.Errorf("check whether %s exists: %w", a.tag, err)
	case existing.Digest != a.digest:
		return fmt.Errorf("%s exists: a release is not replaced; make one with another version", a.tag)
	}
	return nil
}

// readImage extracts an archive that writeImages has written into dir, and returns the image in it.
func readImage(archive, dir string) (v1.ImageIndex, error) {
	if out, err := exec.Command("tar", "--extract", "--directory", dir, "--file", archive).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return nil, err
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		return nil, err
	}
	return index.ImageIndex(manifest.Manifests[0].Digest)
}

// helmChart is a Helm chart as a registry has it.
type helmChart struct {
	manifest []byte
	layers   []v1.Layer
}

// RawManifest implements [remote.Taggable].
func (c helmChart) RawManifest() ([]byte, error) { return c.manifest, nil }

// MediaType replaces that of Docker, which is the default of package remote.
func (c helmChart) MediaType() (types.MediaType, error) { return types.OCIManifestSchema1, nil }

func readChart(archive string) (helmChart, error) {
	data, err := os.ReadFile(archive)
	if err != nil {
		return helmChart{}, err
	}
	metadata, err := readMetadata(data)
	if err != nil {
		return helmChart{}, fmt.Errorf("%s: %w", archive, err)
	}
	config, content := static.NewLayer(metadata, chartConfig), static.NewLayer(data, chartContent)
	configDescriptor, configErr := partial.Descriptor(config)
	contentDescriptor, contentErr := partial.Descriptor(content)
	if err := errors.Join(configErr, contentErr); err != nil {
		return helmChart{}, err
	}
	manifest, err := json.Marshal(v1.Manifest{
		SchemaVersion: 2, MediaType: types.OCIManifestSchema1, Config: *configDescriptor, Layers: []v1.Descriptor{*contentDescriptor},
	})
	return helmChart{manifest: manifest, layers: []v1.Layer{config, content}}, err
}

// readMetadata returns Chart.yaml of a packed chart as JSON.
func readMetadata(archive []byte) ([]byte, error) {
	unpacked, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		return nil, err
	}
	for files := tar.NewReader(unpacked); ; {
		header, err := files.Next()
		if err != nil {
			return nil, fmt.Errorf("directx-nri/Chart.yaml: %w", err)
		}
		if header.Name != "directx-nri/Chart.yaml" {
			continue
		}
		var metadata map[string]any
		if err := yaml.NewDecoder(files).Decode(&metadata); err != nil {
			return nil, err
		}
		return json.Marshal(metadata)
	}
}
