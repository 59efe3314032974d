package pnp

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/win32"
	"github.com/directx-nri/directx-nri/internal/winpath"
)

// The subkeys of the driver key that list runtime files: for System32 and 64-bit programs, and for
// SysWOW64 and 32-bit programs. The two keys differ in when an existing file is overwritten,
// which does not matter for mounts.
// https://learn.microsoft.com/windows-hardware/drivers/display/container-non-dx
func system32Keys() []string { return []string{"CopyToVmOverwrite", "CopyToVmWhenNewer"} }
func sysWOW64Keys() []string { return []string{"CopyToVmOverwriteWow64", "CopyToVmWhenNewerWow64"} }

// runtimeFiles returns the files listed by the values of subkeys, and notes about
// values that were skipped.
//
// A value has a path relative to the driver's directory and optionally another name for the
// container. Files are in the order of subkeys and names, because the registry lists values in any
// order. Of two files with the same destination, a container gets the first one.
func runtimeFiles(values []win32.RegistryValue, subkeys ...string) (files []discovery.RuntimeFile, notes []string) {
	for _, subkey := range subkeys {
		list := slices.DeleteFunc(slices.Clone(values), func(v win32.RegistryValue) bool { return !strings.EqualFold(v.Subkey, subkey) })
		slices.SortStableFunc(list, func(a, b win32.RegistryValue) int { return cmp.Compare(a.Name, b.Name) })
		for _, value := range list {
			file, err := runtimeFile(value)
			if err != nil {
				notes = append(notes, fmt.Sprintf("runtime file skipped: %s of %s %v", quote(value.Name), quote(value.Subkey), err))
				continue
			}
			files = append(files, file)
		}
	}
	return files, notes
}

func runtimeFile(value win32.RegistryValue) (discovery.RuntimeFile, error) {
	names, err := valueStrings(value)
	switch {
	case err != nil:
		return discovery.RuntimeFile{}, err
	case len(names) == 0:
		return discovery.RuntimeFile{}, errors.New("names no file")
	case len(names) > 2:
		return discovery.RuntimeFile{}, fmt.Errorf("has %d strings, want a source and at most one destination", len(names))
	}
	source := winpath.Clean(names[0])
	if !winpath.IsLocal(names[0]) || source == "." || strings.Contains(names[0], "..") {
		return discovery.RuntimeFile{}, fmt.Errorf("has the source %s, which is not a file below the driver's directory", quote(names[0]))
	}
	destination := names[len(names)-1]
	if len(names) == 1 {
		destination = winpath.Base(source)
	}
	if !winpath.IsLocal(destination) || destination == "." || winpath.Base(destination) != destination {
		return discovery.RuntimeFile{}, fmt.Errorf("has the destination %s, which is not a file name", quote(destination))
	}
	return discovery.RuntimeFile{Source: source, Destination: destination}, nil
}

// The REG_ types of strings.
const (
	regString      = 1 // REG_SZ
	regMultiString = 7 // REG_MULTI_SZ
)

// valueStrings returns the strings of a REG_SZ or REG_MULTI_SZ value.
func valueStrings(v win32.RegistryValue) ([]string, error) {
	if v.Type != regString && v.Type != regMultiString {
		return nil, fmt.Errorf("has registry type %d, want REG_SZ (%d) or REG_MULTI_SZ (%d)", v.Type, regString, regMultiString)
	}
	list, err := win32.Strings(v.Data)
	if err != nil {
		return nil, fmt.Errorf("has %w", err)
	}
	if v.Type == regString {
		list = list[:min(len(list), 1)]
	}
	// A replacement character would name another file.
	if strings.ContainsRune(strings.Join(list, ""), utf8.RuneError) {
		return nil, errors.New("is not valid UTF-16")
	}
	return list, nil
}

// quote returns text in quotation marks with escapes. It shortens text that is longer than a path.
func quote(text string) string { return fmt.Sprintf("%.260q", text) }
