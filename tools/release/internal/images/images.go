// Package images says what is in the product's images, and writes them.
package images

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"directx-nri/tools/release/internal/baselayer"
	"directx-nri/tools/release/internal/files"
	"directx-nri/tools/release/internal/notices"
	"directx-nri/tools/release/internal/oci"
	"directx-nri/tools/release/internal/product"
	"directx-nri/tools/release/internal/sbom"
)

// DocumentFolder is where an image has licences, notices and the list of what
// is in it: below its root.
func DocumentFolder(platform product.Platform) string {
	if platform.OS == "windows" {
		return "doc"
	}
	return "usr/share/doc/" + product.Name
}

// Build is what all archives of one release have in common.
type Build struct {
	Version    string    // such as v0.1.0; the image's tag too
	Revision   string    // the commit, or empty
	Source     string    // URL of the sources, or empty
	Repository string    // the image's name without tag
	Created    time.Time // what all times in archives are
}

// Programs are the programs for one platform, and what is handed on with them.
type Programs struct {
	Platform  product.Platform
	Binaries  []product.Binary
	Documents []files.File // licence, notices and SBOM
}

// LoadPrograms reads the programs for a platform from the folder dir, and what
// is in them from tree. root is the repository, whose licence they have.
func LoadPrograms(build Build, dir, root string, platform product.Platform, tree notices.Tree) (Programs, error) {
	binaries, err := product.Load(dir, platform)
	if err != nil {
		return Programs{}, err
	}
	license, err := os.ReadFile(filepath.Join(root, "LICENSE"))
	if err != nil {
		return Programs{}, fmt.Errorf("reading our licence: %w", err)
	}
	for _, binary := range binaries {
		if got := binary.Info.GoVersion; got != tree.GoVersion {
			return Programs{}, fmt.Errorf("%s of %s was built with %s, and its licence would be %s's: `make build` builds it anew", binary.File, platform, got, tree.GoVersion)
		}
	}
	components, err := tree.Collect(product.Modules(binaries))
	if err != nil {
		return Programs{}, err
	}
	list, err := sbom.Document(sbom.Subject{
		Platform: platform, Version: build.Version, Source: build.Source, Created: build.Created, Binaries: binaries,
	}, components)
	if err != nil {
		return Programs{}, fmt.Errorf("listing what is in the programs for %s: %w", platform, err)
	}
	return Programs{Platform: platform, Binaries: binaries, Documents: []files.File{
		{Name: "LICENSE", Mode: files.Plain, Data: license},
		{Name: NoticesFile, Mode: files.Plain, Data: notices.Document(product.Name, components)},
		{Name: SBOMFile, Mode: files.Plain, Data: list},
	}}, nil
}

// Names of what is handed on with the programs.
const (
	NoticesFile = "THIRD_PARTY_NOTICES.txt"
	SBOMFile    = "sbom.spdx.json"
)

// SBOM is the list of what is in the programs.
func (p Programs) SBOM() []byte {
	for _, file := range p.Documents {
		if file.Name == SBOMFile {
			return file.Data
		}
	}
	return nil
}

// Ref is the image's full name.
func (b Build) Ref() string { return b.Repository + ":" + b.Version }

// Check returns an error unless the version can be an image's tag, and so a part
// of files' names, and the repository is one with its registry: what containerd
// imports under a shorter name, no pod finds.
func (b Build) Check() error {
	// A version is never the end of a longer name, nor one with a digest.
	if !regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$`).MatchString(b.Version) {
		return fmt.Errorf("the version %q can be no image's tag: letters, digits and _ . - can (VERSION=v0.1.0)", b.Version)
	}
	if _, err := name.NewTag(b.Ref(), name.StrictValidation); err != nil {
		return fmt.Errorf("%q is no name for an image (IMAGE=registry.example.com/%s): %w", b.Repository, product.Name, err)
	}
	if _, err := name.NewRepository(b.Repository, name.StrictValidation); err != nil {
		return fmt.Errorf("%q is no image's name without tag (IMAGE=registry.example.com/%s): %w", b.Repository, product.Name, err)
	}
	return nil
}

// labels describe the image, as labels of its configuration and as annotations
// of its manifest.
//
// https://github.com/opencontainers/image-spec/blob/v1.1.1/annotations.md
func (b Build) labels() map[string]string {
	labels := map[string]string{
		ocispec.AnnotationTitle:       product.Name,
		ocispec.AnnotationDescription: product.Description,
		ocispec.AnnotationVersion:     b.Version,
		ocispec.AnnotationLicenses:    product.License,
		ocispec.AnnotationCreated:     b.Created.UTC().Format(time.RFC3339),
	}
	if b.Revision != "" {
		labels[ocispec.AnnotationRevision] = b.Revision
	}
	if b.Source != "" {
		labels[ocispec.AnnotationSource] = b.Source
		labels[ocispec.AnnotationDocumentation] = b.Source + "#readme"
	}
	return labels
}

// content are the files of an image: the programs in its root.
func content(programs Programs) []files.File {
	var list []files.File
	for _, binary := range programs.Binaries {
		list = append(list, files.File{Name: binary.File, Mode: files.Executable, Data: binary.Data})
	}
	for _, file := range programs.Documents {
		file.Name = path.Join(DocumentFolder(programs.Platform), file.Name)
		list = append(list, file)
	}
	return list
}

// New puts the image for one platform together.
func New(build Build, programs Programs) (oci.Image, error) {
	image := oci.Image{
		// No os.version: a HostProcess container runs on every build of Windows.
		Platform:    ocispec.Platform{OS: programs.Platform.OS, Architecture: programs.Platform.Arch},
		Config:      linuxConfig(),
		Annotations: build.labels(),
		Created:     build.Created,
	}
	write := files.WriteTar
	if programs.Platform.OS == "windows" {
		image.Config, write = windowsConfig(), baselayer.Write
	}
	image.Config.Labels = build.labels()
	var tarball bytes.Buffer
	if err := write(&tarball, content(programs), build.Created); err != nil {
		return oci.Image{}, err
	}
	layer, err := oci.NewLayer(tarball.Bytes(), "make images")
	if err != nil {
		return oci.Image{}, err
	}
	image.Layers = []oci.Layer{layer}
	return image, nil
}

// linuxConfig runs dxctl, as somebody who types `docker run IMAGE --help`
// expects. PATH lets `kubectl exec POD -- dxctl doctor` find the program. Nodes
// are root's to change.
func linuxConfig() ocispec.ImageConfig {
	return ocispec.ImageConfig{
		User: "0:0", Env: []string{"PATH=/"}, Entrypoint: []string{"/dxctl"}, Cmd: []string{"--help"}, WorkingDir: "/",
	}
}

// windowsConfig runs dxctl. Windows puts the place where it shows the image's
// files for the variable's name. The user is the pod's to say, and the
// environment is the host's.
//
// https://kubernetes.io/docs/tasks/configure-pod-container/create-hostprocess-pod/
func windowsConfig() ocispec.ImageConfig {
	return ocispec.ImageConfig{
		Entrypoint: []string{`%CONTAINER_SANDBOX_MOUNT_POINT%\dxctl.exe`}, Cmd: []string{"--help"},
	}
}

// Write writes an archive of the image for each platform into the folder out,
// and one with all of them behind one index when they are several: of one image,
// an index that was there is another build's, and goes. Names begin with stem. It
// returns the paths.
func Write(out, stem string, build Build, all []Programs) ([]string, error) {
	if err := os.MkdirAll(out, 0o755); err != nil {
		return nil, fmt.Errorf("making the folder for the images: %w", err)
	}
	index := filepath.Join(out, stem+".tar")
	if err := os.Remove(index); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("removing the images that were there: %w", err)
	}
	var (
		written []string
		images  []oci.Image
	)
	for _, programs := range all {
		image, err := New(build, programs)
		if err != nil {
			return written, fmt.Errorf("making the image for %s: %w", programs.Platform, err)
		}
		images = append(images, image)
		target := filepath.Join(out, stem+"-"+programs.Platform.String()+".tar")
		if err := files.Create(target, func(w io.Writer) error { return oci.WriteImage(w, build.Ref(), image) }); err != nil {
			return written, err
		}
		written = append(written, target)
	}
	if len(images) < 2 {
		return written, nil
	}
	if err := files.Create(index, func(w io.Writer) error { return oci.WriteIndex(w, build.Ref(), images) }); err != nil {
		return written, err
	}
	return append(written, index), nil
}

// WriteSBOMs writes the list of what is in the programs for each platform into
// the folder out. It returns the paths.
func WriteSBOMs(out string, build Build, all []Programs) ([]string, error) {
	var written []string
	for _, programs := range all {
		target := filepath.Join(out, fmt.Sprintf("%s-%s-%s.spdx.json", product.Name, build.Version, programs.Platform))
		if err := files.Create(target, func(w io.Writer) error { _, err := w.Write(programs.SBOM()); return err }); err != nil {
			return written, err
		}
		written = append(written, target)
	}
	return written, nil
}

// WriteDocuments writes what is handed on with the programs for each platform
// into a folder of the platform's name in out. It returns the paths.
func WriteDocuments(out string, all []Programs) ([]string, error) {
	var written []string
	for _, programs := range all {
		dir := filepath.Join(out, programs.Platform.String())
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return written, fmt.Errorf("making the folder for the documents: %w", err)
		}
		for _, file := range programs.Documents {
			target := filepath.Join(dir, file.Name)
			if err := files.Create(target, func(w io.Writer) error { _, err := w.Write(file.Data); return err }); err != nil {
				return written, err
			}
			written = append(written, target)
		}
	}
	return written, nil
}
