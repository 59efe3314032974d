// Package extramounts decides which files a container gets that its pod asks for
// beside what the drivers list.
//
// What is asked for was written by somebody who is not trusted. [Parse] reads it,
// [Policy.Mounts] says what becomes of it: every file, or an error, never a part.
// A request is judged three times: its paths as they stand, what they lead to on
// the node, and what is in the container's way.
package extramounts

import (
	"errors"
	"fmt"
	"strings"

	"directx-nri/internal/strictyaml"
)

// Request is one file that is asked for.
type Request struct {
	// Source is a path relative to the driver store path of one of the container's
	// GPUs, or an absolute path of the node.
	Source string
	// Destination is the file's name, or its absolute path in the container. "" is
	// the source's name.
	Destination string
	// Folder is "System32", "SysWOW64" or "" for the usual one. It is for names alone.
	Folder string
}

// Limits of what is asked for. The length is that of all annotations of a pod
// together, in Kubernetes 256 KiB.
const (
	maxBytes    = 64 << 10
	maxRequests = 256
	maxPath     = 1024 // bytes of a path
)

// ErrMalformed tells a request that cannot be read.
var ErrMalformed = errors.New("it is not a list of files")

// Parse reads the YAML list of what is asked for:
//
//   - nvidia-smi.exe                    # to System32, under its own name
//   - source: x86\tool.exe
//     destination: tool.exe             # or an absolute path: C:\tools\tool.exe
//     folder: SysWOW64                  # default: System32
//
// name names the list in the error, which matches [ErrMalformed] and is one line.
func Parse(name, text string) ([]Request, error) {
	r := strictyaml.NewReader(strictyaml.Options{
		Name: name, What: "list", MaxBytes: maxBytes, MaxValues: 8 * maxRequests,
		Empty: "write [] or remove it", Second: "put all files into one list",
	})
	requests := parse(r, text)
	if err := r.Err(); err != nil {
		return nil, fmt.Errorf("%w: %s", ErrMalformed, firstLine(err.Error()))
	}
	return requests, nil
}

func parse(r *strictyaml.Reader, text string) []Request {
	root, ok := r.Document([]byte(text))
	if !ok {
		return nil
	}
	items, ok := root.Items(maxRequests)
	if !ok {
		return nil
	}
	requests := make([]Request, 0, len(items))
	for _, item := range items {
		requests = append(requests, request(item))
	}
	return requests
}

func request(v strictyaml.Value) (request Request) {
	if v.IsString() {
		request.Source = pathOf(v)
		return request
	}
	o, ok := v.Object("source", "destination", "folder")
	if !ok {
		return request
	}
	if f, ok := o.Require("source", "name the file"); ok {
		request.Source = pathOf(f)
	}
	if f, ok := o.Get("destination"); ok {
		request.Destination = pathOf(f)
	}
	if f, ok := o.Get("folder"); ok {
		if request.Folder, ok = f.String(); ok && request.Folder != folder32 && request.Folder != folder64 {
			f.Fail("%s is not known; write %s or %s", strictyaml.Quote(request.Folder), folder64, folder32)
		}
	}
	return request
}

func pathOf(v strictyaml.Value) string {
	text, ok := v.Name()
	if ok && len(text) > maxPath {
		v.Fail("has %d bytes; at most %d are allowed", len(text), maxPath)
	}
	return text
}

// firstLine returns the first of several problems: an error is one line.
func firstLine(text string) string {
	first, rest, more := strings.Cut(text, "\n")
	if more {
		return fmt.Sprintf("%s (and %d more)", first, 1+strings.Count(rest, "\n"))
	}
	return first
}
