package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"testing/fstest"
	"time"

	"github.com/google/go-containerregistry/pkg/crane"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// windowsBase is Microsoft's base image for HostProcess containers, which runs on every build of Windows. The digest
// is that of the images of Azure's CNI, which run on AKS.
//
// https://github.com/microsoft/windows-host-process-containers-base-image,
// https://github.com/Azure/azure-container-networking/blob/master/cns/Dockerfile
const windowsBase = "mcr.microsoft.com/oss/kubernetes/windows-host-process-containers-base-image:v1.0.0" +
	"@sha256:b4c9637e032f667c52d1eccfa31ad8c63f1b035e8639f3f48a510536bf34032b"

// Security descriptors in layers for Windows: O:BAG:SYD:P(A;;FA;;;BA)(A;;FA;;;SY)(A;;0x1200a9;;;BU), and the same
// with OICI for directories.
const (
	fileDescriptor      = "AQAEkBQAAAAkAAAAAAAAADAAAAABAgAAAAAABSAAAAAgAgAAAQEAAAAAAAUSAAAAAgBMAAMAAAAAABgA/wEfAAECAAAAAAAFIAAAACACAAAAABQA/wEfAAEBAAAAAAAFEgAAAAAAGACpABIAAQIAAAAAAAUgAAAAIQIAAA=="
	directoryDescriptor = "AQAEkBQAAAAkAAAAAAAAADAAAAABAgAAAAAABSAAAAAgAgAAAQEAAAAAAAUSAAAAAgBMAAMAAAAAAxgA/wEfAAECAAAAAAAFIAAAACACAAAAAxQA/wEfAAEBAAAAAAAFEgAAAAADGACpABIAAQIAAAAAAAUgAAAAIQIAAA=="
)

// windowsHeader adds what Windows reads from a layer. https://pkg.go.dev/github.com/Microsoft/go-winio/backuptar
func windowsHeader(h *tar.Header) {
	attributes, descriptor := "32", fileDescriptor
	if h.Typeflag == tar.TypeDir {
		attributes, descriptor = "16", directoryDescriptor
	}
	h.AccessTime, h.ChangeTime = h.ModTime, h.ModTime
	h.PAXRecords = map[string]string{
		"MSWINDOWS.fileattr": attributes, "MSWINDOWS.rawsd": descriptor, "LIBARCHIVE.creationtime": strconv.FormatInt(h.ModTime.Unix(), 10),
	}
}

// newImage returns the image for a platform.
func (r release) newImage(b build) (v1.Image, error) {
	image, err := empty.Image, error(nil)
	config := v1.Config{User: "0:0", Env: []string{"PATH=/"}, WorkingDir: "/", Entrypoint: []string{"/dxctl"}}
	files, header := below("", b.programs, below("usr/share/doc/directx-nri", b.documents)), func(*tar.Header) {}
	if b.os == "windows" {
		base := cmp.Or(os.Getenv("WINDOWS_BASE_IMAGE"), windowsBase)
		if base != "scratch" { // As in a Dockerfile, for tests.
			image, err = crane.Pull(base, crane.WithPlatform(&v1.Platform{OS: "windows", Architecture: "amd64"}))
		}
		if err != nil {
			return nil, fmt.Errorf("pull %s: %w\nset WINDOWS_BASE_IMAGE to a copy in a registry that this machine reaches, or make images for Linux alone: IMAGE_PLATFORMS=linux-amd64",
				base, err)
		}
		config = v1.Config{Entrypoint: []string{`%CONTAINER_SANDBOX_MOUNT_POINT%\dxctl.exe`}}
		files, header = below("Files", b.programs, below("doc", b.documents)), windowsHeader
		// Windows does not import a layer without this directory, which would have changes of the registry.
		// https://github.com/google/go-containerregistry/issues/1111
		files["Hives"] = &fstest.MapFile{Mode: fs.ModeDir}
	}
	config.Cmd, config.Labels = []string{"--help"}, r.labels()
	data, err := r.tar(files, header)
	if err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil },
		tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching)
	if err != nil {
		return nil, err
	}
	history := v1.History{Created: v1.Time{Time: r.created}, CreatedBy: "make images"}
	image, err = mutate.Append(image, mutate.Addendum{Layer: layer, History: history})
	if err != nil {
		return nil, err
	}
	full, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	full = &v1.ConfigFile{
		OS: b.os, Architecture: b.arch, Created: v1.Time{Time: r.created}, Config: config, History: full.History, RootFS: full.RootFS,
	}
	image, err = mutate.ConfigFile(mutate.ConfigMediaType(mutate.MediaType(image, types.OCIManifestSchema1), types.OCIConfigJSON), full)
	if err != nil {
		return nil, err
	}
	return mutate.Annotations(image, r.labels()).(v1.Image), nil
}

// labels describe the image, in its configuration and its manifest.
func (r release) labels() map[string]string {
	const prefix = "org.opencontainers.image."
	return map[string]string{
		prefix + "title": "directx-nri", prefix + "description": "DirectX GPUs for containers on stock containerd and Kubernetes",
		prefix + "version": r.version, prefix + "revision": r.revision, prefix + "source": r.source,
		prefix + "licenses": "Apache-2.0", prefix + "created": r.created.Format(time.RFC3339),
	}
}

// writeImages writes an OCI archive of the image for each platform, and one of all if they are several.
func (r release) writeImages(builds []build) error {
	all := mutate.Annotations(empty.Index, r.labels()).(v1.ImageIndex)
	for _, b := range builds {
		image, err := r.newImage(b)
		if err == nil {
			err = r.writeImage("-"+b.platform(), image)
		}
		if err != nil {
			return fmt.Errorf("image for %s: %w", b.platform(), err)
		}
		platform := &v1.Platform{OS: b.os, Architecture: b.arch}
		all = mutate.AppendManifests(all, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: platform}})
	}
	if len(builds) == 1 {
		return nil
	}
	return r.writeImage("", all)
}

func (r release) writeImage(suffix string, image mutate.Appendable) error {
	dir, err := os.MkdirTemp("", "release")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // What is left in the temporary directory does no harm.
	names := map[string]string{"org.opencontainers.image.ref.name": r.image, "io.containerd.image.name": r.image}
	named := v1.Descriptor{Annotations: names}
	if _, err := layout.Write(dir, mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: image, Descriptor: named})); err != nil {
		return err
	}
	files, err := r.read(dir, "*")
	if err != nil {
		return err
	}
	data, err := r.tar(files, func(*tar.Header) {})
	if err != nil {
		return err
	}
	return r.write("directx-nri-image-"+r.version+suffix+".tar", data)
}
