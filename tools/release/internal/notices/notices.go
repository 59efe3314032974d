// Package notices collects the licences of the modules that are compiled into
// the programs. Most of them ask to be handed on with the programs.
package notices

import (
	"bytes"
	"cmp"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/google/licensecheck"
	"golang.org/x/mod/module"
)

// NoAssertion is SPDX's word for a licence that is not known.
const NoAssertion = "NOASSERTION"

// enough is how much of a file, in percent, has to be the text of licences for
// the file to tell the licence.
const enough = 75

// Component is something that is compiled into the programs.
type Component struct {
	Path    string // of the module, or "stdlib"
	Version string // v1.2.3; of Go for the standard library: v1.26.0
	Sum     string // as in go.sum; empty for the standard library
	Source  string // URL of the sources
	License string // SPDX expression, or NoAssertion
	Texts   []Text // what to hand on, the root's files first
}

// Text is one licence file.
type Text struct {
	Name string // in the module
	Data string
}

// Tree is where Go keeps sources, as `go env -json` tells.
type Tree struct {
	ModCache  string `json:"GOMODCACHE"`
	GoRoot    string `json:"GOROOT"`
	GoVersion string `json:"GOVERSION"`
}

// Collect returns the components that modules and the Go standard library are,
// in the order of their paths. A module without a licence file is an error: it
// may not be handed on.
func (t Tree) Collect(modules []debug.Module) ([]Component, error) {
	version := "v" + strings.TrimPrefix(t.GoVersion, "go")
	components := []Component{{Path: "stdlib", Version: version, Source: "https://go.dev/dl/" + t.GoVersion + ".src.tar.gz"}}
	dirs := []string{t.GoRoot}
	for _, m := range modules {
		path, err := module.EscapePath(m.Path)
		if err != nil {
			return nil, fmt.Errorf("finding the sources of %s: %w", m.Path, err)
		}
		escaped, err := module.EscapeVersion(m.Version)
		if err != nil {
			return nil, fmt.Errorf("finding the sources of %s %q, which has to be a released module: %w", m.Path, m.Version, err)
		}
		components = append(components, Component{
			Path: m.Path, Version: m.Version, Sum: m.Sum,
			Source: "https://proxy.golang.org/" + path + "/@v/" + escaped + ".zip",
		})
		dirs = append(dirs, filepath.Join(t.ModCache, filepath.FromSlash(path)+"@"+escaped))
	}
	for i := range components {
		c := &components[i]
		var err error
		// Of Go's own tree the root's files alone: below are the sources of other
		// programs.
		if c.Texts, err = texts(dirs[i], c.Path != "stdlib"); err != nil {
			return nil, fmt.Errorf("reading the licence of %s %s (`go mod download` fetches modules): %w", c.Path, c.Version, err)
		}
		if len(c.Texts) == 0 {
			return nil, fmt.Errorf("%s %s has no licence file in %s: it may not be handed on", c.Path, c.Version, dirs[i])
		}
		c.License = expression(c.Texts)
	}
	slices.SortFunc(components, func(a, b Component) int {
		return cmp.Or(strings.Compare(a.Path, b.Path), strings.Compare(a.Version, b.Version))
	})
	return components, nil
}

// texts returns the licence files in dir, and below it when deep.
func texts(dir string, deep bool) ([]Text, error) {
	pattern := regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents|copyright|unlicense)([.-].*)?$`)
	var list []Text
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path != dir && (!deep || entry.Name() == "testdata"):
			return fs.SkipDir
		case !entry.Type().IsRegular() || !pattern.MatchString(entry.Name()) || filepath.Ext(path) == ".go":
			return nil
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		text := strings.ReplaceAll(string(bytes.TrimSpace(data)), "\r\n", "\n")
		list = append(list, Text{Name: filepath.ToSlash(name), Data: text})
		return nil
	})
	slices.SortFunc(list, func(a, b Text) int {
		return cmp.Or(cmp.Compare(strings.Count(a.Name, "/"), strings.Count(b.Name, "/")), strings.Compare(a.Name, b.Name))
	})
	return list, err
}

// known are the licences that are taken from a file's text: names that SPDX has
// too.
func known(id string) bool {
	switch id {
	case "0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "ISC", "MIT", "MPL-2.0", "Unlicense", "Zlib":
		return true
	}
	return false
}

// expression is what the root's licence files say together. A file that says
// something unknown leaves the whole unknown; patents, notices and lists of
// copyright holders say nothing about the licence.
func expression(list []Text) string {
	found := make(map[string]bool)
	for _, text := range list {
		upper := strings.ToUpper(text.Name)
		if strings.Contains(text.Name, "/") || strings.HasPrefix(upper, "PATENTS") || strings.HasPrefix(upper, "NOTICE") || strings.HasPrefix(upper, "COPYRIGHT") {
			continue
		}
		coverage := licensecheck.Scan([]byte(text.Data))
		if coverage.Percent < enough {
			return NoAssertion
		}
		for _, match := range coverage.Match {
			if !known(match.ID) {
				return NoAssertion
			}
			found[match.ID] = true
		}
	}
	if len(found) == 0 {
		return NoAssertion
	}
	ids := make([]string, 0, len(found))
	for id := range found {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return strings.Join(ids, " AND ")
}

// Document is a text with all licences in it, each distinct one once.
func Document(product string, components []Component) []byte {
	var b strings.Builder
	fmt.Fprintf(&b, "The programs of %s contain the following, under licences of their own.\n\n", product)
	type users struct {
		text  string
		names []string
	}
	var order []*users
	byText := make(map[string]*users)
	for _, c := range components {
		fmt.Fprintf(&b, "%s %s\n    licence %s, source %s\n", c.Path, c.Version, c.License, c.Source)
		for _, text := range c.Texts {
			if byText[text.Data] == nil {
				byText[text.Data] = &users{text: text.Data}
				order = append(order, byText[text.Data])
			}
			byText[text.Data].names = append(byText[text.Data].names, fmt.Sprintf("%s %s (%s)", c.Path, c.Version, text.Name))
		}
	}
	for _, u := range order {
		fmt.Fprintf(&b, "\n%s\n%s\n\n%s\n", strings.Repeat("=", 80), strings.Join(u.names, "\n"), u.text)
	}
	return []byte(b.String())
}
