package pnp

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/win32"
)

func TestRuntimeFiles(t *testing.T) {
	t.Parallel()
	const overwrite, newer = "CopyToVmOverwrite", "CopyToVmWhenNewer"
	file := func(source, destination string) discovery.RuntimeFile {
		return discovery.RuntimeFile{Source: source, Destination: destination}
	}
	for name, test := range map[string]struct {
		values []win32.RegistryValue
		want   []discovery.RuntimeFile
		notes  []string // part of each note
	}{
		"other destination":  {values: []win32.RegistryValue{multi(newer, "a", "x64.dll", "x.dll")}, want: []discovery.RuntimeFile{file("x64.dll", "x.dll")}},
		"in a subdirectory":  {values: []win32.RegistryValue{multi(newer, "a", `B0/bin\x.dll`)}, want: []discovery.RuntimeFile{file(`B0\bin\x.dll`, "x.dll")}},
		"subkey in capitals": {values: []win32.RegistryValue{multi("COPYTOVMWHENNEWER", "a", "x.dll")}, want: []discovery.RuntimeFile{file("x.dll", "x.dll")}},
		"other subkeys":      {values: []win32.RegistryValue{multi("", newer, "x.dll"), multi("CopyToVm", "a", "x.dll"), multi(newer+"Wow64", "a", "x.dll")}},
		"subkey by subkey": {values: []win32.RegistryValue{multi(newer, "a", "1.dll"), multi(overwrite, "b", "2.dll")},
			want: []discovery.RuntimeFile{file("2.dll", "2.dll"), file("1.dll", "1.dll")}},
		"by name in a subkey": {values: []win32.RegistryValue{multi(newer, "b", "1.dll"), multi(newer, "a", "2.dll")},
			want: []discovery.RuntimeFile{file("2.dll", "2.dll"), file("1.dll", "1.dll")}},
		"invalid among valid": {values: []win32.RegistryValue{multi(newer, "a", "1.dll"), {Subkey: newer, Name: "b", Type: 4, Data: []byte{1, 0, 0, 0}}, multi(newer, "c", "3.dll")},
			want: []discovery.RuntimeFile{file("1.dll", "1.dll"), file("3.dll", "3.dll")}, notes: []string{"registry type 4"}},
		"three strings":         {values: []win32.RegistryValue{multi(newer, "a", "1.dll", "2.dll", "3.dll")}, notes: []string{"3 strings"}},
		"a single string":       {values: []win32.RegistryValue{{Subkey: newer, Type: regString, Data: utf16le("x.dll\x00y.dll\x00")}}, want: []discovery.RuntimeFile{file("x.dll", "x.dll")}},
		"high surrogate alone":  {values: []win32.RegistryValue{{Subkey: newer, Type: regMultiString, Data: []byte{0x00, 0xD8, 'a', 0}}}, notes: []string{"UTF-16"}},
		"name with line breaks": {values: []win32.RegistryValue{multi(newer, "a\r\nb", "..\\\n")}, notes: []string{`"a\r\nb"`}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			files, notes := runtimeFiles(test.values, system32Keys()...)
			if diff := cmp.Diff(test.want, files); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if len(notes) != len(test.notes) {
				t.Fatalf("notes %q, want %d", notes, len(test.notes))
			}
			for i, want := range test.notes {
				if !strings.Contains(notes[i], want) || strings.ContainsAny(notes[i], "\r\n") {
					t.Errorf("note %q, want %q on one line", notes[i], want)
				}
			}
		})
	}
}

func TestInvalidRuntimeFiles(t *testing.T) {
	t.Parallel()
	outside := []string{`a\..\x.dll`, `..`, `.`, `C:\Windows\x.dll`, `\\server\share\x.dll`, `x.dll:stream`, `NUL`, `*.dll`, ``}
	for _, source := range outside {
		if files, notes := runtimeFiles([]win32.RegistryValue{multi("CopyToVmOverwrite", "a", source)}, system32Keys()...); len(files) != 0 || len(notes) != 1 {
			t.Errorf("source %q: files %v, notes %q", source, files, notes)
		}
	}
	for _, destination := range append(outside[:len(outside)-1], `a\x.dll`, `a/x.dll`) {
		if files, notes := runtimeFiles([]win32.RegistryValue{multi("CopyToVmOverwrite", "a", "good.dll", destination)}, system32Keys()...); len(files) != 0 || len(notes) != 1 {
			t.Errorf("destination %q: files %v, notes %q", destination, files, notes)
		}
	}
}
