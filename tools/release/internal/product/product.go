// Package product is what is released: the programs, built for each platform,
// and what the toolchain wrote into them.
package product

import (
	"bytes"
	"debug/buildinfo"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
)

// Name is the product's.
const Name = "directx-nri"

// Description is one line for catalogues of images and charts.
const Description = "DirectX GPUs for containers on stock containerd and Kubernetes"

// License is the SPDX identifier of the product's licence.
const License = "Apache-2.0"

// Programs are the names of the programs, without suffix.
func Programs() []string {
	return []string{"containerd-shim-directx-v1", "directx-advertiser", "directx-nri", "dxctl"}
}

// Platform is an operating system and an architecture, by Go's names.
type Platform struct{ OS, Arch string }

func (p Platform) String() string { return p.OS + "-" + p.Arch }

// ParsePlatform reads a platform as OS-ARCH or OS/ARCH.
func ParsePlatform(text string) (Platform, error) {
	system, arch, ok := strings.Cut(strings.ReplaceAll(text, "/", "-"), "-")
	if !ok || (system != "linux" && system != "windows") || (arch != "amd64" && arch != "arm64") {
		return Platform{}, fmt.Errorf("%q is no platform: linux-amd64, linux-arm64, windows-amd64 and windows-arm64 are", text)
	}
	return Platform{OS: system, Arch: arch}, nil
}

// Suffix is what names of programs end with on the platform.
func (p Platform) Suffix() string {
	if p.OS == "windows" {
		return ".exe"
	}
	return ""
}

// Binary is one program, built for a platform.
type Binary struct {
	Program string // without suffix
	File    string // with suffix
	Data    []byte
	Info    *debug.BuildInfo
}

// Load reads the programs for a platform from a folder like bin/linux-amd64.
// It returns an error when one is missing, was built for something else or
// needs shared libraries: an image has none.
func Load(dir string, platform Platform) ([]Binary, error) {
	binaries := make([]Binary, 0, len(Programs()))
	for _, program := range Programs() {
		name := program + platform.Suffix()
		path := filepath.Join(dir, name)
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("reading a program, which `make build` makes: %w", err)
		}
		info, err := buildinfo.Read(bytes.NewReader(data))
		if err != nil {
			return nil, fmt.Errorf("reading what Go wrote into %s: %w", path, err)
		}
		if err := check(info, platform); err != nil {
			return nil, fmt.Errorf("%s %w; `make build` builds it anew, where neither the environment nor `go env -w` says so", path, err)
		}
		binaries = append(binaries, Binary{Program: program, File: name, Data: data, Info: info})
	}
	return binaries, nil
}

// check returns an error, to be read after the program's name, when a program
// is not one that can be released for platform. A setting that is not known may
// change what the program needs, as GOAMD64 and -race do, or that others can build
// the same.
func check(info *debug.BuildInfo, platform Platform) error {
	want := map[string]string{
		"GOOS": platform.OS, "GOARCH": platform.Arch, "CGO_ENABLED": "0", "-trimpath": "true", "-buildmode": "exe", "-compiler": "gc",
	}
	switch platform.Arch {
	case "amd64":
		want["GOAMD64"] = "v1"
	case "arm64":
		want["GOARM64"] = "v8.0"
	}
	for _, setting := range info.Settings {
		if setting.Key == "-tags" || setting.Key == "DefaultGODEBUG" {
			continue // They are the sources' to say.
		}
		value, ok := want[setting.Key]
		if !ok {
			return fmt.Errorf("was built with %s=%s, which no release is", setting.Key, setting.Value)
		}
		if setting.Value != value {
			return fmt.Errorf("was built with %s=%s, not %s", setting.Key, setting.Value, value)
		}
		delete(want, setting.Key)
	}
	if len(want) > 0 {
		return fmt.Errorf("does not tell how it was built: %s", strings.Join(slices.Sorted(maps.Keys(want)), ", "))
	}
	return nil
}

// Modules returns the modules that are compiled into binaries, each once, by
// path. A replaced module is its replacement. The Go standard library is not
// among them.
func Modules(binaries []Binary) []debug.Module {
	seen := make(map[string]debug.Module)
	for _, binary := range binaries {
		for _, module := range binary.Info.Deps {
			if module.Replace != nil {
				module = module.Replace
			}
			seen[module.Path+"@"+module.Version] = *module
		}
	}
	return sorted(seen)
}

func sorted(modules map[string]debug.Module) []debug.Module {
	list := make([]debug.Module, 0, len(modules))
	for _, key := range slices.Sorted(maps.Keys(modules)) {
		list = append(list, modules[key])
	}
	return list
}
