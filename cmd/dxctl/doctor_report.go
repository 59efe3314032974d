package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/cli"
	"github.com/directx-nri/directx-nri/internal/durable"
	"github.com/directx-nri/directx-nri/internal/paths"
)

// maxLog is the limit of a log in bytes. The shim's log is rotated before it is larger.
const maxLog = 4 << 20

// readLines returns the lines of a file without secrets, or the error of reading it. It removes zero
// bytes, so that ASCII text in UTF-16 is readable.
func readLines(file string) []string {
	text, err := durable.Read(file, maxLog)
	if err != nil {
		text = []byte(err.Error())
	}
	return strings.Split(string(redact(bytes.ReplaceAll(text, []byte{0}, nil))), "\n")
}

// bugReport is the content of the file of 'dxctl doctor --report'. Of the files of
// other programs, it has only the content of Windows' devices.def.
type bugReport struct {
	Doctor       doctorReport `json:"doctor"`
	Capabilities nodeState    `json:"capabilities"`
	Devices      []gpuReport  `json:"devices"`
	ShimLog      []string     `json:"shimLog"`
	// DevicesDef are the lines of the file in which Windows defines the devices for containers.
	DevicesDef []string `json:"devicesDef,omitempty"`
	// Verify is the last result of 'dxctl verify'.
	Verify json.RawMessage `json:"verify,omitempty"`
}

func (g *gatherer) writeReport(stderr io.Writer, state nodeState, report doctorReport) error {
	var devices []discovery.Device
	for _, d := range state.GPUs {
		devices = append(devices, d.Device)
	}
	r := bugReport{Doctor: report.withoutQuotes(), Capabilities: state, Devices: newGPUReports(devices, state.Config.Policy, g.nodeOS)}
	// The findings have these errors, without their quotations from files.
	c := &r.Capabilities
	c.Config.Err, c.Config.Invalid = nil, nil
	r.ShimLog = readLines(state.Config.Policy.Shim.LogPath(g.stateDir))
	if g.nodeOS == "windows" {
		r.DevicesDef = readLines(filepath.Join(os.Getenv("SystemRoot"), "System32", "containers", "devices.def"))
	}
	if text, err := durable.Read(filepath.Join(g.stateDir, paths.VerifyFile), maxLog); err == nil && json.Valid(text) {
		r.Verify = text
	}
	var text bytes.Buffer
	if err := cli.PrintDocument(&text, cli.JSON, r); err != nil {
		return err
	}
	if err := durable.Create(g.reportFile, redact(text.Bytes()), 0o600); err != nil {
		return err
	}
	fmt.Fprintf(stderr, "wrote %s; read it before you send it\n", g.reportFile)
	return nil
}

// quotation matches the parts of an error that show content of a file: quoted strings, and keys that
// the YAML library does not quote.
var quotation = regexp.MustCompile("`[^`]*`|\"(?:[^\"\\\\]|\\\\.)*\"|'[^']*'|\\bfield .* not found in type|\\bkey .* already set")

// withoutQuotes returns the report without quotations from files in its findings.
func (r doctorReport) withoutQuotes() doctorReport {
	r.Findings = slices.Clone(r.Findings)
	for i := range r.Findings {
		r.Findings[i].Problem = quotation.ReplaceAllString(r.Findings[i].Problem, "'…'")
	}
	return r
}

// secrets returns patterns of secrets. [redact] keeps the text of their first group.
func secrets() []*regexp.Regexp {
	const name = `(?i)(\w*(?:password|secret|token|key|credentials?)\w*\\*["']?\s*[:=]\s*`
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
		// An allocation token, or a value for [public]. A JSON escape sequence such as \u003e also ends
		// with hexadecimal digits.
		regexp.MustCompile(`((?:^|[\s"])(?:allocation|configSHA256|inventorySHA256)(?:=|\\*":\s?\\*")|\\u[0-9a-fA-F]{4})?[0-9a-fA-F]{32,}`),
	}
}

// public matches what looks like a secret but is none: the registry key of a driver, the checksum of
// a file, and the ID of an allocation.
var public = regexp.MustCompile(`^(?:driverKey\W+\{[0-9A-Fa-f-]{36}\}\\+[0-9]{4}|[\s"]?(?:allocation\W+[0-9a-f]{32}|\w+SHA256\W+[0-9a-f]{64}))$`)

// redact replaces what looks like a secret: passwords, users in URLs, and long hexadecimal numbers.
func redact(text []byte) []byte {
	clean := strings.ToValidUTF8(string(text), "?")
	for _, secret := range secrets() {
		clean = secret.ReplaceAllStringFunc(clean, func(match string) string {
			if public.MatchString(match) {
				return match
			}
			return secret.ReplaceAllString(match, "${1}REDACTED")
		})
	}
	return []byte(clean)
}
