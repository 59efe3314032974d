package pnp

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf16"

	"directx-nri/discovery"
	"directx-nri/internal/winpath"
)

// The subkeys of the driver key whose values name runtime files. Those of the
// first list are for System32 and 64-bit programs, those of the second for
// SysWOW64 and 32-bit ones. Whether Windows would overwrite a file that is there
// already or only an older one is of no account to a mount.
// https://learn.microsoft.com/windows-hardware/drivers/display/container-non-dx
func system32Keys() []string { return []string{"CopyToVmOverwrite", "CopyToVmWhenNewer"} }
func sysWOW64Keys() []string { return []string{"CopyToVmOverwriteWow64", "CopyToVmWhenNewerWow64"} }

// maxNotes is how many values of one list are told to be passed over. A list that
// is wrong altogether must not fill a log.
const maxNotes = 16

// runtimeFiles returns the files that the values of subkeys list, and what was
// passed over.
//
// Each value is one file: where it is below the driver store folder and, where
// it is to have another name in the container, that name. The files come subkey
// by subkey, those of one in the order of their values' names: the registry
// enumerates values in any order. Of two files with one destination the first
// counts.
func runtimeFiles(values []Value, subkeys ...string) (files []discovery.RuntimeFile, notes []string) {
	taken := map[string]Value{}
	for _, subkey := range subkeys {
		list := slices.DeleteFunc(slices.Clone(values), func(v Value) bool { return !strings.EqualFold(v.Subkey, subkey) })
		slices.SortStableFunc(list, func(a, b Value) int { return cmp.Compare(a.Name, b.Name) })
		for _, value := range list {
			file, err := runtimeFile(value)
			key := winpath.Key(file.Destination)
			if first, ok := taken[key]; ok && err == nil {
				err = fmt.Errorf("is mounted as %s, which %s is already", quote(file.Destination), first.where())
			}
			if err != nil {
				notes = append(notes, fmt.Sprintf("runtime file passed over: %s %v", value.where(), err))
				continue
			}
			taken[key] = value
			files = append(files, file)
		}
	}
	if len(notes) > maxNotes {
		rest := len(notes) - maxNotes
		notes = append(notes[:maxNotes], fmt.Sprintf("runtime files passed over: %d more", rest))
	}
	return files, notes
}

// where names a value in a message.
func (v Value) where() string { return quote(v.Name) + " of " + quote(v.Subkey) }

// runtimeFile returns the file that value names.
func runtimeFile(value Value) (discovery.RuntimeFile, error) {
	names, err := value.text()
	switch {
	case err != nil:
		return discovery.RuntimeFile{}, err
	case len(names) == 0:
		return discovery.RuntimeFile{}, errors.New("names no file")
	case len(names) > 2:
		return discovery.RuntimeFile{}, fmt.Errorf("has %d strings, and a file has a source and at most a destination", len(names))
	}
	source := winpath.Clean(names[0])
	if err := checkSource(names[0], source); err != nil {
		return discovery.RuntimeFile{}, err
	}
	file := discovery.RuntimeFile{Source: source, Destination: winpath.Base(source)}
	if len(names) == 2 {
		if err := checkName(names[1]); err != nil {
			return discovery.RuntimeFile{}, err
		}
		file.Destination = names[1]
	}
	return file, nil
}

// checkSource refuses a path, and what it is when it is cleaned, that is not a
// file below a folder in plain words: it may not even go up and come back.
func checkSource(path, clean string) error {
	if !winpath.IsLocal(path) || clean == "." {
		return fmt.Errorf("has the source %s, which is no file below the driver's folder", quote(path))
	}
	for element := range strings.FieldsFuncSeq(path, isSeparator) {
		if element == ".." {
			return fmt.Errorf(`has the source %s, which goes up by ".."`, quote(path))
		}
	}
	for element := range strings.SplitSeq(clean, `\`) {
		if err := checkName(element); err != nil {
			return err
		}
	}
	return nil
}

// maxName is how many UTF-16 code units the name of a file may have.
// https://learn.microsoft.com/windows/win32/fileio/maximum-file-path-limitation
const maxName = 255

// checkName refuses what is not the plain name of a file, and what Windows would
// take for another one.
func checkName(name string) error {
	switch {
	case strings.ContainsFunc(name, isSeparator) || !winpath.IsLocal(name) || name == "." || name == "..":
		return fmt.Errorf("has the name %s, which is no plain file name", quote(name))
	case len(utf16.Encode([]rune(name))) > maxName:
		return fmt.Errorf("has the name %s, which is longer than the %d characters that a file's may have", quote(name), maxName)
	case strings.TrimRight(name, ". ") != name:
		return fmt.Errorf("has the name %s, which ends with a dot or a space that Windows drops", quote(name))
	}
	return nil
}

func isSeparator(r rune) bool { return r == '\\' || r == '/' }
