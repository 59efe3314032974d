package main

import (
	"bytes"
	"cmp"
	"debug/buildinfo"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"golang.org/x/mod/module"
)

// build is the programs for a platform, and what is distributed with them.
type build struct {
	os, arch            string
	programs, documents tree
}

func (b build) platform() string { return b.os + "-" + b.arch }

// load reads the programs for a platform, such as linux-amd64, and collects the licenses of what they are built of.
func (r release) load(platform string) (b build, err error) {
	b.os, b.arch, _ = strings.Cut(platform, "-")
	if b.programs, err = r.read(filepath.Join(r.bin, platform), "*"); err != nil {
		return b, fmt.Errorf("programs that make build-%s builds: %w", platform, err)
	}
	if b.documents, err = r.read(root, "LICENSE"); err != nil {
		return b, err
	}
	out, err := exec.Command("go", "env", "GOROOT", "GOMODCACHE").Output()
	if err != nil {
		return b, fmt.Errorf("go env: %w", err)
	}
	goroot, cache, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	modules := map[string]*debug.Module{}
	for name, f := range b.programs {
		info, err := buildinfo.Read(bytes.NewReader(f.Data))
		if err != nil {
			return b, fmt.Errorf("%s for %s: %w", name, platform, err)
		}
		for _, m := range append(info.Deps, &debug.Module{Path: "std", Version: info.GoVersion}) {
			m = cmp.Or(m.Replace, m)
			modules[m.Path+"@"+m.Version] = m
		}
	}
	var components []cdx.Component
	var notices, sbom bytes.Buffer
	for _, id := range slices.Sorted(maps.Keys(modules)) {
		files, err := r.readLicenses(modules[id], goroot, cache)
		if err != nil {
			return b, err
		}
		for _, name := range slices.Sorted(maps.Keys(files)) {
			fmt.Fprintf(&notices, "%s\n%s: %s\n\n%s\n", strings.Repeat("=", 80), id, name, files[name].Data)
		}
		components = append(components, cdx.Component{
			Type: cdx.ComponentTypeLibrary, Name: modules[id].Path, Version: modules[id].Version, PackageURL: "pkg:golang/" + id,
		})
	}
	bom := cdx.NewBOM()
	bom.Components = &components
	bom.Metadata = &cdx.Metadata{
		Timestamp: r.created.Format(time.RFC3339),
		Component: &cdx.Component{Type: cdx.ComponentTypeApplication, Name: "directx-nri", Version: r.version},
	}
	err = cdx.NewBOMEncoder(&sbom, cdx.BOMFileFormatJSON).SetPretty(true).Encode(bom)
	b.documents["THIRD_PARTY_NOTICES.txt"], b.documents[sbomFile] = r.newFile(notices.Bytes()), r.newFile(sbom.Bytes())
	return b, err
}

const sbomFile = "sbom.cdx.json"

// readLicenses reads a module's LICENSE, LICENCE, COPYING, NOTICE and PATENTS, whatever their suffixes.
func (r release) readLicenses(m *debug.Module, goroot, cache string) (tree, error) {
	dir := goroot
	if m.Path != "std" {
		path, pathErr := module.EscapePath(m.Path)
		version, versionErr := module.EscapeVersion(m.Version)
		if err := errors.Join(pathErr, versionErr); err != nil {
			return nil, err
		}
		dir = filepath.Join(cache, path+"@"+version)
	}
	return r.read(dir, "LICEN[CS]E*", "License*", "COPYING*", "NOTICE*", "PATENTS*")
}
