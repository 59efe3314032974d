// Package basetest stands in for the registry with Microsoft's base image for HostProcess containers.
package basetest

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"log"
	"net/http/httptest"
	"strings"

	"github.com/google/go-containerregistry/pkg/crane"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// Hive is a file of the image's layer.
const Hive = "Files/Windows/System32/config/SYSTEM"

// Serve serves the image, and returns its name and what ends the registry.
func Serve() (string, func(), error) {
	var data bytes.Buffer
	t := tar.NewWriter(&data)
	err := t.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: Hive, Mode: 0o644, Size: 4})
	_, writeErr := t.Write([]byte("hive"))
	if err := errors.Join(err, writeErr, t.Close()); err != nil {
		return "", nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data.Bytes())), nil })
	if err != nil {
		return "", nil, err
	}
	image, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return "", nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return "", nil, err
	}
	config.OS, config.Architecture, config.Config = "windows", "amd64", v1.Config{Cmd: []string{"cmd"}}
	if image, err = mutate.ConfigFile(image, config); err != nil {
		return "", nil, err
	}
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	name := strings.TrimPrefix(server.URL, "http://") + "/base:v1"
	return name, server.Close, crane.Push(image, name)
}
