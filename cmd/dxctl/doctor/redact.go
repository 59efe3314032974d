package doctor

import (
	"regexp"
	"slices"
	"strings"
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

// Redact returns the report with findings that quote no file.
func (r Report) Redact() Report {
	r.Findings = slices.Clone(r.Findings)
	for i := range r.Findings {
		r.Findings[i].Problem = RedactQuotes(r.Findings[i].Problem)
	}
	return r
}
