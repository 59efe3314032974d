package doctor

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"

	"directx-nri/internal/durable"
)

// Redacted replaces what was removed.
const Redacted = "REDACTED"

const secretName = `(?i:(?:pass(?:word|wd|phrase)?|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|auth(?:orization)?|credentials?|cookie|signature)[A-Za-z0-9_]*\\?["']?\s*[:=]\s*)`

type redaction struct {
	pattern *regexp.Regexp
	with    string
}

// redactions returns patterns of secrets and their replacements.
func redactions() []redaction {
	return []redaction{
		{regexp.MustCompile(`-----BEGIN [^-]+-----[\s\S]*?(?:-----END [^-]+-----|\z)`), Redacted},
		{regexp.MustCompile(`\beyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]*)?`), Redacted}, // JSON Web Token
		{regexp.MustCompile(`(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{6,}`), "$1 " + Redacted},
		// User and query of a URL. A password may contain a slash.
		{regexp.MustCompile(`([A-Za-z][A-Za-z0-9+.-]*://)[^\s"'\\]+@`), "${1}" + Redacted + "@"},
		{regexp.MustCompile(`([A-Za-z][A-Za-z0-9+.-]*://[^\s?"'\\]+)\?[^\s"'\\]+`), "${1}?" + Redacted},
		// A value with the name of a secret: in quotation marks, escaped ones, or none.
		{regexp.MustCompile(`(` + secretName + `)"(?:[^"\\]|\\.)*"`), `${1}"` + Redacted + `"`},
		{regexp.MustCompile(`(` + secretName + `)'[^']*'`), `${1}'` + Redacted + `'`},
		{regexp.MustCompile(`(` + secretName + `)\\"(?:[^\\]|\\[^"])*\\"`), `${1}\"` + Redacted + `\"`},
		{regexp.MustCompile(`(` + secretName + `)[^\s"'\\,;}\]]+`), "${1}" + Redacted},
	}
}

// A JSON escape such as \u003e may precede the digits, and ends in some itself.
var hexRun = regexp.MustCompile(`(\\u[0-9a-fA-F]{4})?([0-9a-fA-F]{32,})`)

// Redact returns text without what looks like a secret: keys, passwords, users in
// URLs, and allocation tokens, which are long hexadecimal numbers. The numbers in
// known, the IDs of allocations, remain.
func Redact(text []byte, known map[string]bool) []byte {
	clean := strings.ToValidUTF8(string(text), "?")
	for _, r := range redactions() {
		clean = r.pattern.ReplaceAllString(clean, r.with)
	}
	return []byte(hexRun.ReplaceAllStringFunc(clean, func(found string) string {
		parts := hexRun.FindStringSubmatch(found)
		if known[parts[2]] {
			return found
		}
		return parts[1] + Redacted
	}))
}

// quoted are the parts of an error that show the content of a file: what is quoted,
// and keys that the YAML library does not quote.
var quoted = regexp.MustCompile("`[^`]*`|\"(?:[^\"\\\\]|\\\\.)*\"|'[^']*'|\\bfield .* not found in type|\\bkey .* already set")

// RedactQuotes returns the text of an error without the file content that it quotes.
func RedactQuotes(text string) string { return quoted.ReplaceAllString(text, "'…'") }

type redactedError struct {
	text string
	error
}

func (e redactedError) Error() string { return e.text }
func (e redactedError) Unwrap() error { return e.error }

func redactError(err *error) {
	if *err != nil {
		*err = redactedError{RedactQuotes((*err).Error()), *err}
	}
}

// Redact returns the facts with errors that quote no file.
func (f Facts) Redact() Facts {
	for _, err := range []*error{&f.Config.Err, &f.Config.Invalid, &f.GPUs.Err, &f.Containerd.FileErr} {
		redactError(err)
	}
	f.Leftovers.FailedCause = RedactQuotes(f.Leftovers.FailedCause)
	for _, list := range []*[]string{&f.Containerd.Overrides, &f.Containerd.BadImports} {
		*list = slices.Clone(*list)
		for i, text := range *list {
			(*list)[i] = RedactQuotes(text)
		}
	}
	for _, list := range []*[]FileError{&f.Records.Damaged, &f.Leftovers.Damaged} {
		*list = slices.Clone(*list)
		for i := range *list {
			redactError(&(*list)[i].Err)
		}
	}
	return f
}

// Tail returns the last lines of a file, at most limit bytes.
func Tail(path string, limit int64) (data []byte, err error) {
	file, err := durable.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("read %s: not a regular file: %w", path, os.ErrInvalid)
	}
	offset := max(0, info.Size()-limit)
	data, err = io.ReadAll(io.NewSectionReader(file, offset, limit))
	if offset > 0 {
		_, data, _ = bytes.Cut(data, []byte("\n"))
	}
	return data, err
}
