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

	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/internal/policy"
)

// List is a list of requested files. Text has a name on each line, to System32 under its own name:
//
//	nvidia-smi.exe  # A dash before the name is ignored, as is a comment.
//
// or it is JSON: ["nvidia-smi.exe", {"source": "x86\\tool.exe", "directory": "SysWOW64"}].
type List struct {
	// Origin is where the list is set, for errors.
	Origin, Text string
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
		return nil, errlog.WithRemedy(fmt.Errorf("not JSON: %w", err), "check the brackets and quotation marks, or write one name on each line instead")
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
		name, _, _ := strings.Cut(" "+line, " #")
		name = strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(name), "- "))
		switch {
		case name == "":
		case strings.Contains(name, ": ") || strings.ContainsAny(name[:1], `'"{`):
			err := fmt.Errorf("line %s is not a name", quote(strings.TrimSpace(line)))
			return nil, errlog.WithRemedy(err, `write the list as JSON, such as [{"source": "a.dll", "destination": "b.dll"}]`)
		default:
			files = append(files, requestedFile{Source: name})
		}
	}
	if files == nil {
		return nil, errlog.WithRemedy(errors.New("empty"), "write [] or remove it")
	}
	return files, nil
}

// quote returns text in quotation marks, with escapes only if it has characters that cannot be
// printed.
func quote(text string) string {
	if quoted := fmt.Sprintf("%+q", text); strings.ReplaceAll(quoted, `\\`, `\`) != `"`+text+`"` {
		return quoted
	}
	return `"` + text + `"`
}
