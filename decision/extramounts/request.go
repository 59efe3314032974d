// Package extramounts decides which files a container gets that its pod requests
// in addition to the driver's own.
//
// Requests are untrusted. [Parse] reads them and [Policy.Mounts] checks them
// three times: the paths as written, the files that they lead to, and what they
// would hide in the container. All requests are granted, or none and the error
// says why.
package extramounts

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/directx-nri/directx-nri/internal/policy"
)

// Request is one requested file.
type Request struct {
	// Source is a path relative to the driver store path of one of the container's
	// GPUs, or an absolute path on the node.
	Source string
	// Destination is a file name, or an absolute path in the container. "" is the
	// name of Source.
	Destination string
	// Directory is the directory of a Destination that is a name: "System32",
	// "SysWOW64" or "" for the default.
	Directory string
}

// maxBytes limits a list.
const maxBytes = 64 << 10

// ErrMalformed means that a request cannot be parsed.
var ErrMalformed = errors.New("not a list of files")

// Parse parses a list of requested files:
//
//   - nvidia-smi.exe                    # to System32, under its own name
//   - source: x86\tool.exe
//     destination: tool.exe             # or an absolute path: C:\tools\tool.exe
//     directory: SysWOW64               # default: System32
//
// or, in one line, [nvidia-smi.exe, {source: x86\tool.exe, directory: SysWOW64}].
// This is a subset of YAML, so that the runtime shim needs no YAML library. name
// names the list in the error, which matches [ErrMalformed] and is one line.
func Parse(name, text string) ([]Request, error) {
	requests, err := parse(text)
	if err == nil {
		err = check(requests)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %w", name, ErrMalformed, err)
	}
	return requests, nil
}

func check(requests []Request) error {
	for _, r := range requests {
		switch {
		case r.Source == "":
			return errors.New("an entry has no source")
		case r.Directory != "" && r.Directory != policy.System32 && r.Directory != policy.SysWOW64:
			return fmt.Errorf("directory %s is neither %s nor %s", quote(r.Directory), policy.System32, policy.SysWOW64)
		}
	}
	return nil
}

func parse(text string) (requests []Request, err error) {
	if len(text) > maxBytes {
		return nil, fmt.Errorf("more than %d bytes", maxBytes)
	}
	text = strings.ReplaceAll(text, "\r\n", "\n")
	p := parser{rest: text}
	if p.skip(); !strings.HasPrefix(p.rest, "[") {
		return parseBlock(text)
	}
	err = p.flow('[', ']', func() error {
		r, err := p.item()
		requests = append(requests, r)
		return err
	})
	return requests, p.end(err)
}

// parseBlock parses a list with a line for each entry or key.
func parseBlock(text string) (requests []Request, err error) {
	dash, keys := -1, -1 // the columns of entries and of the last entry's keys
	for line := range strings.SplitSeq(text, "\n") {
		content := strings.TrimLeft(line, " ")
		if content == "" || content[0] == '#' {
			continue
		}
		column := len(line) - len(content)
		switch entry, isEntry := strings.CutPrefix(content, "- "); {
		case isEntry && (dash < 0 || column == dash):
			dash, keys = column, -1
			content = strings.TrimLeft(entry, " ")
			column += len("- ") + len(entry) - len(content)
			requests = append(requests, Request{})
		case keys < 0 || column != keys:
			return nil, fmt.Errorf("line %s: write each file as %q", quote(line), "- FILE")
		}
		p, last := parser{rest: content, line: true}, &requests[len(requests)-1]
		if key, value, ok := cutKey(content); ok {
			keys, p.rest = column, value
			err = p.member(last, key)
		} else {
			*last, err = p.item()
		}
		if err := p.end(err); err != nil {
			return nil, fmt.Errorf("line %s: %w", quote(line), err)
		}
	}
	if requests == nil {
		return nil, errors.New("empty; write [] or remove it")
	}
	return requests, nil
}

// cutKey splits "key: value".
func cutKey(text string) (key, value string, ok bool) {
	if text == "" || strings.ContainsAny(text[:1], `'"{[`) {
		return "", "", false
	}
	key, value, ok = strings.Cut(text+" ", ": ")
	return key, strings.TrimSpace(value), ok && !strings.Contains(key, " #")
}

// parser parses values at the beginning of rest.
type parser struct {
	rest string
	line bool // rest is a line, in which commas and brackets are part of plain text
}

// skip skips white space and comments.
func (p *parser) skip() {
	for {
		p.rest = strings.TrimLeft(p.rest, " \t\n")
		if !strings.HasPrefix(p.rest, "#") {
			return
		}
		_, p.rest, _ = strings.Cut(p.rest, "\n")
	}
}

// end returns err, or an error if there is anything left.
func (p *parser) end(err error) error {
	if p.skip(); err == nil && p.rest != "" {
		return p.unexpected()
	}
	return err
}

func (p *parser) unexpected() error {
	if p.rest == "" {
		return errors.New("it ends too early")
	}
	return fmt.Errorf("unexpected %s", quote(p.rest[:min(len(p.rest), 20)]))
}

// flow parses a list of elements in brackets, each with parseElement.
func (p *parser) flow(begin, end byte, parseElement func() error) error {
	for first := true; ; first = false {
		switch p.skip(); {
		case p.rest == "":
			return p.unexpected()
		case !first && p.rest[0] == end:
			p.rest = p.rest[1:]
			return nil
		case first && p.rest[0] == begin, !first && p.rest[0] == ',':
			p.rest = p.rest[1:]
		default:
			return p.unexpected()
		}
		if p.skip(); strings.HasPrefix(p.rest, string(end)) {
			p.rest = p.rest[1:]
			return nil
		}
		if err := parseElement(); err != nil {
			return err
		}
	}
}

// item parses a file name or a map.
func (p *parser) item() (r Request, err error) {
	if !strings.HasPrefix(p.rest, "{") {
		r.Source, err = p.scalar()
		return r, err
	}
	p.line = false
	err = p.flow('{', '}', func() error {
		key, value, ok := strings.Cut(p.rest, ":")
		if !ok {
			return p.unexpected()
		}
		p.rest = value
		return p.member(&r, strings.TrimSpace(key))
	})
	return r, err
}

// member parses the value of key into r.
func (p *parser) member(r *Request, key string) (err error) {
	field, ok := map[string]*string{"source": &r.Source, "destination": &r.Destination, "directory": &r.Directory}[key]
	switch {
	case !ok:
		return fmt.Errorf("unknown key %s; use source, destination or directory", quote(key))
	case *field != "":
		return fmt.Errorf("key %s is there twice", key)
	}
	p.skip()
	*field, err = p.scalar()
	return err
}

// scalar parses a quoted or plain text, which is not empty.
func (p *parser) scalar() (text string, err error) {
	switch {
	case strings.HasPrefix(p.rest, "'"):
		// Two quotation marks stand for one.
		for more := true; more; more = strings.HasPrefix(p.rest, "'") {
			part, rest, ok := strings.Cut(p.rest[1:], "'")
			if !ok {
				return "", errors.New("a quotation mark is missing")
			}
			text, p.rest = text+part+"'", rest
		}
		text = strings.TrimSuffix(text, "'")
	case strings.HasPrefix(p.rest, `"`):
		decoder := json.NewDecoder(strings.NewReader(p.rest))
		if err := decoder.Decode(&text); err != nil {
			return "", fmt.Errorf("text in quotation marks: %w", err)
		}
		p.rest = p.rest[decoder.InputOffset():]
	default:
		end := p.plainEnd()
		text, p.rest = strings.TrimRight(p.rest[:end], " \t"), p.rest[end:]
	}
	if text == "" {
		return "", p.unexpected()
	}
	return text, nil
}

// plainEnd returns where the plain text at the beginning of rest ends.
func (p *parser) plainEnd() int {
	stop := "\n"
	if !p.line {
		stop += ",[]{}"
	}
	end := strings.IndexAny(p.rest, stop)
	if end < 0 {
		end = len(p.rest)
	}
	if comment := strings.Index(p.rest[:end], " #"); comment >= 0 {
		end = comment
	}
	return end
}

// quote returns text in quotation marks, with escapes only where it has
// characters that cannot be printed.
func quote(text string) string {
	if quoted := fmt.Sprintf("%+q", text); strings.ReplaceAll(quoted, `\\`, `\`) != `"`+text+`"` {
		return quoted
	}
	return `"` + text + `"`
}
