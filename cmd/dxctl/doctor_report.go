package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/directx-nri/directx-nri/internal/cli"
	"github.com/directx-nri/directx-nri/internal/durable"
	"github.com/directx-nri/directx-nri/internal/paths"
)

// maxLog is the limit of a log in bytes. The shim's log is rotated before it is larger.
const maxLog = 4 << 20

// writeReport writes the text file of 'dxctl doctor --report'. Of the files of other programs, it has only Windows'
// devices.def, in which Windows defines the devices for containers.
func writeReport(file string, n nodeState, findings []finding) error {
	var report bytes.Buffer
	section := func(title string) { report.WriteString("\n# " + title + "\n\n") }
	section("dxctl doctor")
	for i, f := range findings {
		if slices.Contains([]string{"policy", "config", "records"}, f.check) {
			findings[i].text = quotation.ReplaceAllString(f.text, "'…'")
		}
	}
	printFindings(&report, findings)
	section("State")
	state := map[string]any{"gpus": newGPUReports(n.gpus), "policy": n.policy, "containerd": n.containerd}
	if err := cli.PrintDocument(&report, cli.YAML, state); err != nil {
		return err
	}
	logs := []string{filepath.Join(n.stateDir, paths.ShimLogFile), filepath.Join(n.stateDir, paths.VerifyFile)}
	if n.os == "windows" {
		logs = append(logs, filepath.Join(os.Getenv("SystemRoot"), "System32", "containers", "devices.def"))
	}
	for _, path := range logs {
		section(path)
		text, err := durable.Read(path, maxLog)
		if err != nil {
			text = []byte(err.Error())
		}
		report.Write(bytes.ReplaceAll(text, []byte{0}, nil)) // ASCII text in UTF-16 is readable without zero bytes.
	}
	return durable.Create(file, []byte(redact(report.String())), 0o600)
}

// quotation matches the parts of an error that show content of a file.
var quotation = regexp.MustCompile("`[^`]*`|\"(?:[^\"\\\\]|\\\\.)*\"|'[^']*'")

// redact replaces what looks like a secret: the user and the query of a URL, a bearer token, long hexadecimal numbers,
// such as IDs of allocations, and a value whose name is that of a secret.
func redact(text string) string {
	text = strings.ToValidUTF8(text, "?")
	for _, secret := range []string{
		`(?i)(\bbearer\s+)[A-Za-z0-9._~+/=-]{6,}`,
		`([A-Za-z][A-Za-z0-9+.-]*://)\S+@`, // A password may contain anything but white space.
		`([A-Za-z][A-Za-z0-9+.-]*://[^\s?"']+\?)[^\s"']+`,
		`()[0-9a-fA-F]{32,}`,
		`(?i)((?:password|secret|token|credential|(?:api|access|private)[-_]?key)\w*\\*["']?\s*[:=]\s*)(?:\\*"(?:[^"\\]|\\.)*"|'[^'\n]*'|[^\s"',;}\]]+)`,
	} {
		text = regexp.MustCompile(secret).ReplaceAllString(text, "${1}REDACTED")
	}
	return text
}
