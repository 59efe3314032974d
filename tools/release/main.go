// Command release writes the images and the licenses of directx-nri for `make images` and `make documents`.
package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing/fstest"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// root is the repository. `go -C tools/release run .` runs in this directory.
const root = "../.."

// release is a version of the product.
type release struct {
	version, revision, source string
	image                     string    // with its tag
	created                   time.Time // of everything in archives
	bin, out                  string    // directories
}

func run(args []string) error {
	var r release
	flags := flag.NewFlagSet("release", flag.ContinueOnError)
	flags.StringVar(&r.version, "version", "", "`version`, such as v0.1.0")
	flags.StringVar(&r.revision, "revision", "", "`commit`, for the image's labels")
	flags.StringVar(&r.source, "source", "", "`URL` of the sources, for the image's labels")
	flags.StringVar(&r.image, "image", "localhost/directx-nri", "`name` of the image, with its registry and without a tag")
	created := flags.Int64("created", 0, "time of everything in archives, in `seconds` since 1970")
	platforms := flags.String("platforms", "linux-amd64", "comma-separated `platforms`")
	flags.StringVar(&r.bin, "bin", "../../bin", "`directory` with a directory of programs for each platform")
	flags.StringVar(&r.out, "out", "", "`directory` to write to")
	err := flags.Parse(args)
	if err != nil {
		return err
	}
	if flags.Arg(0) == "zip" {
		return writeZip(flags.Arg(1), flags.Arg(2))
	}
	r.image += ":" + r.version
	if _, err := name.NewTag(r.image, name.StrictValidation); err != nil {
		return fmt.Errorf("image %s: %w", r.image, err)
	}
	r.created = time.Unix(*created, 0).UTC()
	var builds []build
	for platform := range strings.SplitSeq(*platforms, ",") {
		b, err := r.load(platform)
		if err != nil {
			return err
		}
		builds = append(builds, b)
	}
	switch flags.Arg(0) {
	case "documents":
		for _, b := range builds {
			for name, f := range b.documents {
				err = errors.Join(err, r.write(path.Join(b.platform(), name), f.Data))
			}
		}
		return err
	case "images":
		return r.writeImages(builds)
	}
	return fmt.Errorf("unknown command %q: documents, images or zip", flags.Arg(0))
}

// writeZip writes a directory and all in it into a zip archive.
func writeZip(dir, archive string) error {
	f, err := os.Create(archive)
	if err != nil {
		return err
	}
	z := zip.NewWriter(f)
	return errors.Join(z.AddFS(os.DirFS(dir)), z.Close(), f.Close())
}

// write writes a file into the output directory.
func (r release) write(name string, data []byte) error {
	target := filepath.Join(r.out, name)
	return errors.Join(os.MkdirAll(filepath.Dir(target), 0o755), os.WriteFile(target, data, 0o644))
}

// tree is the content of an archive.
type tree = fstest.MapFS

// newFile returns a file of an archive. Its mode does not depend on this machine.
func (r release) newFile(data []byte) *fstest.MapFile {
	mode := fs.FileMode(0o644)
	if bytes.HasPrefix(data, []byte("#!")) || bytes.HasPrefix(data, []byte("\x7fELF")) || bytes.HasPrefix(data, []byte("MZ")) {
		mode = 0o755
	}
	return &fstest.MapFile{Data: data, Mode: mode, ModTime: r.created}
}

// read reads what matches one of the patterns in dir, with all that is in directories.
func (r release) read(dir string, patterns ...string) (tree, error) {
	files, all := os.DirFS(dir), tree{}
	var names []string
	var err error
	for _, pattern := range patterns {
		found, globErr := fs.Glob(files, pattern)
		names, err = append(names, found...), errors.Join(err, globErr)
	}
	if err != nil || len(names) == 0 {
		return nil, fmt.Errorf("no %s in %s: %w", strings.Join(patterns, " or "), dir, errors.Join(err, fs.ErrNotExist))
	}
	for _, name := range names {
		err = errors.Join(err, fs.WalkDir(files, name, func(name string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			data, err := fs.ReadFile(files, name)
			all[name] = r.newFile(data)
			return err
		}))
	}
	return all, err
}

// below returns the files of trees in one directory.
func below(dir string, trees ...tree) tree {
	all := tree{}
	for _, files := range trees {
		for name, f := range files {
			all[path.Join(dir, name)] = f
		}
	}
	return all
}

// tar returns a tar archive, in which everything belongs to root. change completes its headers.
func (r release) tar(files tree, change func(*tar.Header)) ([]byte, error) {
	var b bytes.Buffer
	t := tar.NewWriter(&b)
	err := fs.WalkDir(files, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || name == "." {
			return err
		}
		header, data := &tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: 0o755, ModTime: r.created, Format: tar.FormatPAX}, []byte(nil)
		if f := files[name]; !entry.IsDir() {
			header.Typeflag, header.Mode, header.Size, data = tar.TypeReg, int64(f.Mode), int64(len(f.Data)), f.Data
		}
		change(header)
		err = t.WriteHeader(header)
		_, writeErr := t.Write(data)
		return errors.Join(err, writeErr)
	})
	err = errors.Join(err, t.Close())
	return b.Bytes(), err
}
