// Package baselayer writes the one layer of a Windows image that stands on no
// image of Microsoft's. Windows cannot start an ordinary container from it, only
// a HostProcess container, which runs on the host's own files, whatever its
// build.
//
// What has to be in it is what containerd's Windows snapshotter and
// ProcessBaseImage of Windows ask of a base layer: the folder Files, and the five
// hives of the registry in it. Windows Server 2025 and newer refuse empty files
// for hives, so these are real ones. There is no second layer: importing one
// merges hives, which fails there too.
//
// https://github.com/microsoft/hcsshim/blob/v0.11.7/internal/wclayer/converttobaselayer.go
// https://github.com/microsoft/windows-host-process-containers-base-image
package baselayer

import (
	"archive/tar"
	"encoding/base64"
	"fmt"
	"io"
	"path"
	"strconv"
	"time"

	"directx-nri/tools/release/internal/files"
	"directx-nri/tools/release/internal/regf"
	"directx-nri/tools/release/internal/secdesc"
)

// Metadata that hcsshim reads from a layer's headers.
//
// https://github.com/microsoft/go-winio/blob/v0.6.2/backuptar/tar.go
const (
	attributesRecord = "MSWINDOWS.fileattr"
	securityRecord   = "MSWINDOWS.rawsd"
	creationRecord   = "LIBARCHIVE.creationtime"

	attributeDirectory = 0x10
	attributeArchive   = 0x20
)

// root is what the container sees as the root of its volume.
const root = "Files"

// hives are the registry's files, without which a folder is no base layer.
func hives() []files.File {
	var list []files.File
	for _, name := range []string{"DEFAULT", "SAM", "SECURITY", "SOFTWARE", "SYSTEM"} {
		list = append(list, files.File{Name: path.Join("Windows/System32/config", name), Mode: files.Plain, Data: regf.Empty(name)})
	}
	return list
}

// Write writes a base layer with list in its root as a tar archive. Everything
// in it is of the one time, belongs to administrators and can be changed by them
// and the system alone.
func Write(w io.Writer, list []files.File, at time.Time) error {
	all := make([]files.File, 0, len(list)+5)
	for _, file := range append(hives(), list...) {
		file.Name = path.Join(root, file.Name)
		all = append(all, file)
	}
	if err := files.Check(all); err != nil {
		return err
	}
	t := tar.NewWriter(w)
	for _, dir := range files.Folders(all) {
		if err := t.WriteHeader(header(dir, tar.TypeDir, 0, at)); err != nil {
			return fmt.Errorf("writing %s to the layer: %w", dir, err)
		}
	}
	for _, file := range files.Sorted(all) {
		if err := t.WriteHeader(header(file.Name, tar.TypeReg, int64(len(file.Data)), at)); err != nil {
			return fmt.Errorf("writing %s to the layer: %w", file.Name, err)
		}
		if _, err := t.Write(file.Data); err != nil {
			return fmt.Errorf("writing %s to the layer: %w", file.Name, err)
		}
	}
	return t.Close()
}

// header has all times set, since hcsshim makes file times from unset ones that
// mean nothing.
func header(name string, kind byte, size int64, at time.Time) *tar.Header {
	attributes, mode, inherit := attributeArchive, int64(files.Plain), byte(0)
	if kind == tar.TypeDir {
		attributes, mode, inherit = attributeDirectory, int64(files.Executable), secdesc.ObjectInherit|secdesc.ContainerInherit
	}
	descriptor := secdesc.New(
		secdesc.Allow{Inherit: inherit, Mask: secdesc.FileAll, Who: secdesc.Administrators()},
		secdesc.Allow{Inherit: inherit, Mask: secdesc.FileAll, Who: secdesc.System()},
		secdesc.Allow{Inherit: inherit, Mask: secdesc.FileReadExecute, Who: secdesc.Users()},
	)
	return &tar.Header{
		Format:     tar.FormatPAX,
		Typeflag:   kind,
		Name:       name,
		Mode:       mode,
		Size:       size,
		ModTime:    at,
		AccessTime: at,
		ChangeTime: at,
		PAXRecords: map[string]string{
			attributesRecord: strconv.Itoa(attributes),
			securityRecord:   base64.StdEncoding.EncodeToString(descriptor),
			creationRecord:   strconv.FormatInt(at.Unix(), 10),
		},
	}
}
