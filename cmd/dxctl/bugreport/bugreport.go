// Package bugreport writes files for bug reports, without secrets.
package bugreport

import (
	"bytes"
	"regexp"
	"strings"

	"github.com/directx-nri/directx-nri/internal/cli"
	"github.com/directx-nri/directx-nri/internal/durable"
)

// secrets returns patterns of secrets. [Redact] keeps the text of their first group.
func secrets() []*regexp.Regexp {
	const name = `(?i)((?:password|secret|token|key|credentials?)\w*\\*["']?\s*[:=]\s*`
	return []*regexp.Regexp{
		regexp.MustCompile(`(?i)(\bbearer\s+)[A-Za-z0-9._~+/=-]{6,}`),
		// User and query of a URL. A password may contain anything but white space, and a JSON
		// log has & as \u0026.
		regexp.MustCompile(`([A-Za-z][A-Za-z0-9+.-]*://)\S+@`),
		regexp.MustCompile(`([A-Za-z][A-Za-z0-9+.-]*://[^\s?"'\\]+\?)(?:[^\s"'\\]|\\+u[0-9a-fA-F]{4})+`),
		// A value whose name is that of a secret, with or without quotation marks, which are kept.
		regexp.MustCompile(name + `\\+")(?:[^"\\]|\\+[^"\\])*`),
		regexp.MustCompile(name + `")(?:[^"\\]|\\.)*`),
		regexp.MustCompile(name + `')(?:[^'"\\\n]|\\.)*`),
		regexp.MustCompile(name + `)[^\s"'\\,;}\]]+`),
		// An allocation token. A JSON escape sequence such as \u003e also ends with hexadecimal digits.
		regexp.MustCompile(`(\\u[0-9a-fA-F]{4})?[0-9a-fA-F]{32,}`),
	}
}

// Redact replaces what looks like a secret: passwords, users in URLs, and long hexadecimal numbers.
func Redact(text []byte) []byte {
	clean := strings.ToValidUTF8(string(text), "?")
	for _, secret := range secrets() {
		clean = secret.ReplaceAllString(clean, "${1}REDACTED")
	}
	return []byte(clean)
}

// Write writes a new file with content as JSON, without what looks like a secret.
func Write(file string, content any) error {
	var text bytes.Buffer
	if err := cli.PrintDocument(&text, cli.JSON, content); err != nil {
		return err
	}
	return durable.Create(file, Redact(text.Bytes()), 0o600)
}
