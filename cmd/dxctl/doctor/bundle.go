package doctor

import (
	"archive/zip"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"directx-nri/internal/durable"
)

// File is a file of a support bundle.
type File struct {
	Name string
	Data []byte
}

// WriteBundle writes files as a zip to path. A file that is there already is
// replaced only when replace says so; otherwise the error matches
// [io/fs.ErrExist].
func WriteBundle(path string, files []File, now time.Time, replace bool) error {
	var buffer bytes.Buffer
	archive := zip.NewWriter(&buffer)
	for _, file := range files {
		w, err := archive.CreateHeader(&zip.FileHeader{Name: file.Name, Method: zip.Deflate, Modified: now.UTC()})
		if err == nil {
			_, err = w.Write(file.Data)
		}
		if err != nil {
			return fmt.Errorf("pack %s into %s: %w", file.Name, path, err)
		}
	}
	if err := archive.Close(); err != nil {
		return fmt.Errorf("pack %s: %w", path, err)
	}
	write := durable.Create
	if replace {
		write = durable.Replace
	}
	return write(path, buffer.Bytes(), 0o600)
}

// Redacted stands for what was taken out.
const Redacted = "REDACTED"

// secretName is what something is called that is secret.
const secretName = `(?:pass(?:word|wd|phrase)?|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|auth(?:orization)?|credentials?|cookie|signature)`

// redactions are what looks like a secret, and what is put there.
func redactions() []func(string) string {
	replace := func(pattern, with string) func(string) string {
		expression := regexp.MustCompile(pattern)
		return func(text string) string { return expression.ReplaceAllString(text, with) }
	}
	return []func(string) string{
		replace(`-----BEGIN [^-]+-----[\s\S]*?(?:-----END [^-]+-----|\z)`, Redacted),
		replace(`\beyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]*)?`, Redacted),
		replace(`(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{6,}`, "$1 "+Redacted),
		// A URL's user, and what is behind its question mark.
		replace(`([A-Za-z][A-Za-z0-9+.-]*://)[^/\s@"'\\]+@`, "${1}"+Redacted+"@"),
		replace(`([A-Za-z][A-Za-z0-9+.-]*://[^\s?"'\\]+)\?[^\s"'\\]+`, "${1}?"+Redacted),
		// What has a secret's name in front, quoted in one of four ways or not.
		replace(`(?i)(`+secretName+`[A-Za-z0-9_]*\\?["']?\s*[:=]\s*)"(?:[^"\\]|\\.)*"`, `${1}"`+Redacted+`"`),
		replace(`(?i)(`+secretName+`[A-Za-z0-9_]*\\?["']?\s*[:=]\s*)'[^']*'`, `${1}'`+Redacted+`'`),
		replace(`(?i)(`+secretName+`[A-Za-z0-9_]*\\?["']?\s*[:=]\s*)\\"(?:[^\\]|\\[^"])*\\"`, `${1}\"`+Redacted+`\"`),
		replace(`(?i)(`+secretName+`[A-Za-z0-9_]*\\?["']?\s*[:=]\s*)[^\s"'\\,;}\]]+`, "${1}"+Redacted),
	}
}

// Redact returns text without what looks like a secret: keys, passwords, users in
// URLs, and allocations' tokens. A token looks as an allocation's ID does, so
// only IDs that are known stay.
func Redact(text []byte, known map[string]bool) []byte {
	clean := strings.ToValidUTF8(string(text), "?")
	for _, redact := range redactions() {
		clean = redact(clean)
	}
	// JSON's \u003e may stand before a token, and ends in such digits too. Git's IDs
	// and containers' are longer.
	return []byte(regexp.MustCompile(`(?:\\u[0-9a-fA-F]{4})?[0-9a-fA-F]{32,}`).ReplaceAllStringFunc(clean, func(found string) string {
		digits := found
		if strings.HasPrefix(found, `\u`) {
			digits = found[len(`\u0000`):]
		}
		if known[digits] || len(digits) >= 40 {
			return found
		}
		return strings.TrimSuffix(found, digits) + Redacted
	}))
}

// shown is what an error shows of a file's content: what it quotes, and the key
// that the YAML library does not quote.
func shown() *regexp.Regexp {
	return regexp.MustCompile("`[^`]*`|\"(?:[^\"\\\\]|\\\\.)*\"|'[^']*'|\\bfield .* not found in type|\\bkey .* already set")
}

// hushed is an error without what it shows of a file.
type hushed struct {
	text string
	err  error
}

func (h hushed) Error() string { return h.text }
func (h hushed) Unwrap() error { return h.err }

// Hush returns err without what it shows of a file, which may be nobody else's
// business.
func Hush(err error) error {
	if err == nil {
		return nil
	}
	return hushed{HushText(err.Error()), err}
}

// HushText is [Hush] for a text.
func HushText(text string) string { return shown().ReplaceAllString(text, "'…'") }

// Hush returns the facts with errors that show nothing of the files that they are
// about.
func (f Facts) Hush() Facts {
	f.Config.Err, f.Config.Bad = Hush(f.Config.Err), Hush(f.Config.Bad)
	f.GPUs.Err = Hush(f.GPUs.Err)
	f.Containerd.FileErr = Hush(f.Containerd.FileErr)
	f.Containerd.Overrides = hushAll(f.Containerd.Overrides)
	f.Containerd.BadImports = hushAll(f.Containerd.BadImports)
	f.Leftovers.JournalErr = Hush(f.Leftovers.JournalErr)
	f.Failed.Why, f.Failed.Err = HushText(f.Failed.Why), Hush(f.Failed.Err)
	f.Records.Damaged = slices.Clone(f.Records.Damaged)
	for i := range f.Records.Damaged {
		f.Records.Damaged[i].Err = Hush(f.Records.Damaged[i].Err)
	}
	return f
}

func hushAll(texts []string) []string {
	var hushed []string
	for _, text := range texts {
		hushed = append(hushed, HushText(text))
	}
	return hushed
}

// Tail returns the end of a file, at most limit bytes from the beginning of a
// line.
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
		return nil, fmt.Errorf("read %s: it is no file: %w", path, os.ErrInvalid)
	}
	cut := info.Size() > limit
	if cut {
		if _, err := file.Seek(-limit, io.SeekEnd); err != nil {
			return nil, err
		}
	}
	data, err = io.ReadAll(io.LimitReader(file, limit))
	if cut {
		_, data, _ = bytes.Cut(data, []byte("\n"))
	}
	return data, err
}
