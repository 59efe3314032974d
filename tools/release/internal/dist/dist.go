// Package dist writes what people download: an archive with the programs for
// each platform, the chart's package, and the checksums of everything.
package dist

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/mod/semver"

	"directx-nri/tools/release/internal/files"
	"directx-nri/tools/release/internal/images"
	"directx-nri/tools/release/internal/product"
)

// ChecksumsFile is the list for `sha256sum -c`.
const ChecksumsFile = "SHA256SUMS"

// CheckVersion returns an error unless version is one that charts and Go take
// for one, with a v before it.
func CheckVersion(version string) error {
	if !semver.IsValid(version) || semver.Canonical(version) != version {
		return fmt.Errorf("%q is no version of a release: it is to be like v0.1.0 or v0.1.0-rc.1 (make release VERSION=v0.1.0)", version)
	}
	return nil
}

// Completions has dxctl print its completions of shells' commands. dxctl is a
// program of this machine's platform.
func Completions(ctx context.Context, dxctl string) ([]files.File, error) {
	var list []files.File
	for _, shell := range []struct{ name, file string }{
		{"bash", "dxctl.bash"}, {"fish", "dxctl.fish"}, {"powershell", "dxctl.ps1"}, {"zsh", "_dxctl"},
	} {
		script, err := exec.CommandContext(ctx, dxctl, "completion", shell.name).Output()
		if err != nil {
			return nil, fmt.Errorf("having dxctl print its completions for %s: %w", shell.name, err)
		}
		list = append(list, files.File{Name: "completions/" + shell.file, Mode: files.Plain, Data: script})
	}
	return list, nil
}

// Reading returns what is there to read and to start from in the repository
// root, which each archive of programs has in it: documentation, man pages,
// sample configurations, examples, the chart, manifests and Dockerfiles. The chart
// and the manifests are of build's version.
func Reading(root string, build images.Build) ([]files.File, error) {
	var list []files.File
	for _, dir := range []string{"docs", "deployments/config", "deployments/inventory", "deployments/examples", chartFolder, manifestsFolder} {
		below, err := Tree(root, dir)
		if err != nil {
			return nil, err
		}
		list = append(list, below...)
	}
	for _, name := range []string{"README.md", "deployments/README.md", "Dockerfile", "Dockerfile.windows"} {
		data, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(name)))
		if err != nil {
			return nil, fmt.Errorf("reading what goes into the archives: %w", err)
		}
		list = append(list, files.File{Name: name, Mode: files.Plain, Data: data})
	}
	return list, setVersion(list, build.Version)
}

// Tree returns the files below a folder of root, named from root. Go's sources
// and hidden files are left out, and modes are made uniform: a script is for
// everybody to run.
func Tree(root, dir string) ([]files.File, error) {
	var list []files.File
	err := fs.WalkDir(os.DirFS(root), dir, func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case strings.HasPrefix(entry.Name(), "."):
			if entry.IsDir() {
				return fs.SkipDir
			}
			return nil
		case !entry.Type().IsRegular() || path.Ext(name) == ".go":
			return nil
		}
		data, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(name)))
		if err != nil {
			return err
		}
		mode := files.Plain
		if bytes.HasPrefix(data, []byte("#!")) {
			mode = files.Executable
		}
		list = append(list, files.File{Name: name, Mode: mode, Data: data})
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("reading what goes into the archives: %w", err)
	}
	return list, nil
}

// Programs writes the archive of the programs for a platform into the folder
// out: a zip for Windows, a tarball for Linux. Everything is below one folder of
// the archive's name. It returns the path.
func Programs(out string, build images.Build, programs images.Programs, reading []files.File) (string, error) {
	name := fmt.Sprintf("%s-%s-%s", product.Name, build.Version, programs.Platform)
	list := slices.Concat(programs.Documents, reading)
	for _, binary := range programs.Binaries {
		list = append(list, files.File{Name: binary.File, Mode: files.Executable, Data: binary.Data})
	}
	list = below(name, list)
	write, suffix := files.WriteTarGzip, ".tar.gz"
	if programs.Platform.OS == "windows" {
		write, suffix = files.WriteZip, ".zip"
	}
	target := filepath.Join(out, name+suffix)
	return target, files.Create(target, func(w io.Writer) error { return write(w, list, build.Created) })
}

func below(folder string, list []files.File) []files.File {
	moved := slices.Clone(list)
	for i := range moved {
		moved[i].Name = path.Join(folder, moved[i].Name)
	}
	return moved
}

// Chart writes the package of the chart in the repository root into the folder
// out. The chart's version and the version of the programs become build's; the
// latter is the image's tag too. It returns the path.
func Chart(out string, build images.Build, root string) (string, error) {
	list, err := Tree(root, chartFolder)
	if err != nil {
		return "", err
	}
	if err := setVersion(list, build.Version); err != nil {
		return "", err
	}
	for i := range list {
		list[i].Name = strings.TrimPrefix(list[i].Name, chartFolder+"/")
	}
	list = below(product.Name, list)
	target := filepath.Join(out, fmt.Sprintf("%s-%s.tgz", product.Name, strings.TrimPrefix(build.Version, "v")))
	return target, files.Create(target, func(w io.Writer) error { return files.WriteTarGzip(w, list, build.Created) })
}

// Checksums writes the list of all files in the folder out for `sha256sum -c`
// there. It returns the path.
func Checksums(out string) (string, error) {
	entries, err := os.ReadDir(out)
	if err != nil {
		return "", fmt.Errorf("reading the release's folder: %w", err)
	}
	var list bytes.Buffer
	for _, entry := range entries {
		if entry.Name() == ChecksumsFile || !entry.Type().IsRegular() {
			continue
		}
		sum, err := sumOf(filepath.Join(out, entry.Name()))
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&list, "%s  %s\n", sum, entry.Name())
	}
	target := filepath.Join(out, ChecksumsFile)
	return target, files.Create(target, func(w io.Writer) error { _, err := w.Write(list.Bytes()); return err })
}

func sumOf(name string) (string, error) {
	file, err := os.Open(name)
	if err != nil {
		return "", fmt.Errorf("summing up %s: %w", name, err)
	}
	defer file.Close() //nolint:errcheck // It is read only.
	sum := sha256.New()
	if _, err := bufio.NewReader(file).WriteTo(sum); err != nil {
		return "", fmt.Errorf("summing up %s: %w", name, err)
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// Clear makes the folder out, or empties it of files, so that nothing of an
// earlier release is summed up with this one.
func Clear(out string) error {
	if err := os.MkdirAll(out, 0o755); err != nil {
		return fmt.Errorf("making the release's folder: %w", err)
	}
	entries, err := os.ReadDir(out)
	if err != nil {
		return fmt.Errorf("reading the release's folder: %w", err)
	}
	for _, entry := range entries {
		if !entry.Type().IsRegular() || !strings.HasPrefix(entry.Name(), product.Name) && entry.Name() != ChecksumsFile {
			return fmt.Errorf("%s is not of a release: name an empty folder", filepath.Join(out, entry.Name()))
		}
	}
	for _, entry := range entries {
		if err := os.Remove(filepath.Join(out, entry.Name())); err != nil {
			return fmt.Errorf("removing the release that was there: %w", err)
		}
	}
	return nil
}
