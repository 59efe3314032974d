// Package extramounts decides which files a container gets that its pod requests
// in addition to the driver's own.
//
// Requests are untrusted. [Resolver.Mounts] checks them three times: the paths as written,
// the files that they lead to, and what they would hide in the container. Either all files
// are granted, or none is and the error says why.
package extramounts

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/remedy"
)

// List is a list of requested files. Text has a line for each name or key:
//
//   - nvidia-smi.exe                    # to System32, under its own name
//   - source: x86\tool.exe
//     destination: tool.exe             # or an absolute path: C:\tools\tool.exe
//     directory: SysWOW64               # default: System32
//
// or it is JSON: ["nvidia-smi.exe", {"source": "x86\\tool.exe", "directory": "SysWOW64"}].
// Both are subsets of YAML, for which a library would add 0.13 ms to each start of the
// runtime shim. In lines, the dash before a name can be left out.
type List struct {
	// Origin is where the list is set, for errors.
	Origin string
	Text   string
}

// requestedFile is a file on a list.
type requestedFile struct {
	// Source is a path relative to the driver store path of one of the container's
	// GPUs, or an absolute path on the node.
	Source string `json:"source"`
	// Destination is a file name, or an absolute path in the container. "" is the name of Source.
	Destination string `json:"destination"`
	// Directory is the directory of a Destination that is a name: "System32",
	// "SysWOW64" or "" for the default.
	Directory string `json:"directory"`
}

// maxBytes limits a list.
const maxBytes = 64 << 10

// errMalformed means that a list cannot be parsed.
var errMalformed = errors.New("not a list of files")

// parse returns the files of a list. The error is one line and names the list.
func (l List) parse() ([]requestedFile, error) {
	files, err := parseList(strings.TrimSpace(l.Text))
	for _, f := range files {
		err = cmp.Or(err, f.check())
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %w", l.Origin, errMalformed, err)
	}
	return files, nil
}

func (f requestedFile) check() error {
	switch {
	case f.Source == "":
		return errors.New("an entry has no source")
	case f.Directory != "" && f.Directory != policy.System32 && f.Directory != policy.SysWOW64:
		return fmt.Errorf("directory %s is neither %s nor %s", quote(f.Directory), policy.System32, policy.SysWOW64)
	}
	return nil
}

func parseList(text string) (files []requestedFile, err error) {
	switch {
	case len(text) > maxBytes:
		return nil, fmt.Errorf("more than %d bytes", maxBytes)
	case !strings.HasPrefix(text, "["):
		return parseLines(text)
	}
	if err := json.Unmarshal([]byte(text), &files); err != nil {
		return nil, remedy.With(fmt.Errorf("not JSON: %w", err), "write a line for each file instead")
	}
	return files, nil
}

// UnmarshalJSON implements [json.Unmarshaler]: a name stands for its Source.
func (f *requestedFile) UnmarshalJSON(data []byte) error {
	if data[0] == '"' {
		return json.Unmarshal(data, &f.Source)
	}
	type object requestedFile // without this method
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	return decoder.Decode((*object)(f))
}

func parseLines(text string) (files []requestedFile, err error) {
	for line := range strings.Lines(text) {
		content, _, _ := strings.Cut(" "+line, " #")
		content, hasDash := strings.CutPrefix(strings.TrimSpace(content), "- ")
		key, value, hasKey := strings.Cut(strings.TrimSpace(content), ": ")
		if !hasKey {
			key, value = "source", key
		}
		if value = strings.TrimSpace(value); value == "" {
			continue
		}
		if hasDash || !hasKey || files == nil {
			files = append(files, requestedFile{})
		}
		if err := files[len(files)-1].setField(key, value); err != nil {
			return nil, fmt.Errorf("line %s: %w", quote(strings.TrimSpace(line)), err)
		}
	}
	if files == nil {
		return nil, remedy.With(errors.New("empty"), "write [] or remove it")
	}
	return files, nil
}

// setField sets the field with the name key.
func (f *requestedFile) setField(key, value string) error {
	const otherYAML = `'"{[&*!|>`
	field, ok := map[string]*string{"source": &f.Source, "destination": &f.Destination, "directory": &f.Directory}[key]
	switch {
	case strings.IndexAny(key, otherYAML) == 0, strings.IndexAny(value, otherYAML) == 0:
		return errors.New("write a name, or a key and its value, without quotation marks and brackets")
	case !ok:
		return remedy.With(fmt.Errorf("unknown key %s", quote(key)), "use source, destination or directory")
	case *field != "":
		return fmt.Errorf("key %s is repeated", key)
	}
	*field = value
	return nil
}

// quote returns text in quotation marks, with escapes only if it has characters that cannot be
// printed.
func quote(text string) string {
	if quoted := fmt.Sprintf("%+q", text); strings.ReplaceAll(quoted, `\\`, `\`) != `"`+text+`"` {
		return quoted
	}
	return `"` + text + `"`
}
