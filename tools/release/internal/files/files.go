// Package files is what goes into archives: names, modes and bytes, in an order
// and with metadata that depend on nothing else, so that the same input always
// gives the same archive, byte for byte.
package files

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"time"
)

// Modes of files in archives. Whose umask a build ran under must not matter.
const (
	Plain      fs.FileMode = 0o644
	Executable fs.FileMode = 0o755
	folder     fs.FileMode = 0o755
)

// File is one file of an archive.
type File struct {
	Name string // with slashes, relative to the archive's root, without . and ..
	Mode fs.FileMode
	Data []byte
}

// Check returns an error when a name is no clean relative path, or is there
// twice.
func Check(list []File) error {
	seen := make(map[string]bool, len(list))
	for _, file := range list {
		if file.Name == "." || !fs.ValidPath(file.Name) {
			return fmt.Errorf("%q is no name for a file in an archive", file.Name)
		}
		if seen[file.Name] {
			return fmt.Errorf("%s is in the archive twice", file.Name)
		}
		seen[file.Name] = true
	}
	return nil
}

// Sorted returns list in the order of names.
func Sorted(list []File) []File {
	return slices.SortedFunc(slices.Values(list), func(a, b File) int { return strings.Compare(a.Name, b.Name) })
}

// Folders returns each folder above the files of list once, parents first.
func Folders(list []File) []string {
	seen := make(map[string]bool)
	var folders []string
	for _, file := range list {
		for dir := path.Dir(file.Name); dir != "." && !seen[dir]; dir = path.Dir(dir) {
			seen[dir] = true
			folders = append(folders, dir)
		}
	}
	slices.Sort(folders)
	return folders
}

// WriteTar writes list as a tar archive: folders first, everything root's and of
// the one time.
func WriteTar(w io.Writer, list []File, at time.Time) error {
	if err := Check(list); err != nil {
		return err
	}
	t := tar.NewWriter(w)
	for _, dir := range Folders(list) {
		header := &tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: int64(folder), ModTime: at, Format: tar.FormatUSTAR}
		if err := t.WriteHeader(header); err != nil {
			return fmt.Errorf("writing %s to the archive: %w", dir, err)
		}
	}
	for _, file := range Sorted(list) {
		header := &tar.Header{Typeflag: tar.TypeReg, Name: file.Name, Mode: int64(file.Mode), Size: int64(len(file.Data)), ModTime: at, Format: tar.FormatUSTAR}
		if err := t.WriteHeader(header); err != nil {
			return fmt.Errorf("writing %s to the archive: %w", file.Name, err)
		}
		if _, err := t.Write(file.Data); err != nil {
			return fmt.Errorf("writing %s to the archive: %w", file.Name, err)
		}
	}
	return t.Close()
}

// WriteTarGzip writes list as a compressed tar archive, with neither name nor
// time in the compression's header.
func WriteTarGzip(w io.Writer, list []File, at time.Time) error {
	z := gzip.NewWriter(w)
	if err := WriteTar(z, list, at); err != nil {
		return err
	}
	return z.Close()
}

// WriteZip writes list as a zip archive. Zip files keep times without a zone, from
// 1980 on: they are UTC's here, and what is older is of that year.
func WriteZip(w io.Writer, list []File, at time.Time) error {
	if err := Check(list); err != nil {
		return err
	}
	if first := time.Date(1980, time.January, 1, 0, 0, 0, 0, time.UTC); at.Before(first) {
		at = first
	}
	z := zip.NewWriter(w)
	for _, file := range Sorted(list) {
		header := &zip.FileHeader{Name: file.Name, Method: zip.Deflate, Modified: at.UTC()}
		header.SetMode(file.Mode)
		part, err := z.CreateHeader(header)
		if err == nil {
			_, err = part.Write(file.Data)
		}
		if err != nil {
			return fmt.Errorf("writing %s to the archive: %w", file.Name, err)
		}
	}
	return z.Close()
}

// Create writes a file beside its place and then puts it there, so that a file
// under its own name is a whole one.
func Create(path string, write func(io.Writer) error) error {
	var content bytes.Buffer
	if err := write(&content); err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	partial := path + ".partial"
	err := os.WriteFile(partial, content.Bytes(), 0o644)
	if err == nil {
		err = os.Rename(partial, path)
	}
	if err != nil {
		// What is left of it would be taken for a part of the release.
		return fmt.Errorf("writing %s: %w", path, errors.Join(err, remove(partial)))
	}
	return nil
}

// remove removes a file that may not be there.
func remove(name string) error {
	if err := os.Remove(name); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
