// Package extramounts decides which files a container gets that its pod requests
// in addition to the driver's own.
//
// Requests are untrusted. [Resolver.Mounts] checks them three times: the paths as written,
// the files that they lead to, and what they would hide in the container. Either all files
// are granted, or none is and the error says why.
package extramounts

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// List is a list of requested files. Text has a source on each line, or it is JSON:
//
//	["nvidia-smi.exe", {"source": "x86\\tool.exe", "destination": "C:\\tools\\tool.exe"}].
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
}

// maxBytes limits a list.
const maxBytes = 64 << 10

// errMalformed means that a list cannot be parsed.
var errMalformed = errors.New("not a list of files")

// parse returns the files of a list. The error is one line and names the list.
func (l List) parse() (files []requestedFile, err error) {
	text := strings.TrimSpace(l.Text)
	if len(text) > maxBytes {
		return nil, fmt.Errorf("%s: %w: more than %d bytes", l.Origin, errMalformed, maxBytes)
	}
	if !strings.HasPrefix(text, "[") {
		return parseLines(text), nil
	}
	if err := json.Unmarshal([]byte(text), &files); err != nil {
		return nil, fmt.Errorf("%s: %w: not JSON: %w", l.Origin, errMalformed, err)
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

func parseLines(text string) (files []requestedFile) {
	for line := range strings.Lines(text) {
		if name := strings.TrimSpace(line); name != "" {
			files = append(files, requestedFile{Source: name})
		}
	}
	return files
}

// quote returns text in quotation marks, with escapes only if it has characters that cannot be
// printed.
func quote(text string) string {
	if quoted := fmt.Sprintf("%+q", text); strings.ReplaceAll(quoted, `\\`, `\`) != `"`+text+`"` {
		return quoted
	}
	return `"` + text + `"`
}
