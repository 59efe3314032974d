package doctor

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

	"github.com/directx-nri/directx-nri/cmd/dxctl/bugreport"
	"github.com/directx-nri/directx-nri/cmd/dxctl/gpus"
	"github.com/directx-nri/directx-nri/cmd/dxctl/statefile"
	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/durable"
	"github.com/directx-nri/directx-nri/internal/paths"
)

// maxLog is a limit in bytes. The shim's log is rotated below it.
const maxLog = 4 << 20

// lines returns the lines of a file without secrets, or why it cannot be read. A file in UTF-16
// loses its zero bytes.
func lines(file string) []string {
	text, err := durable.Read(file, maxLog)
	if err != nil {
		text = []byte(err.Error())
	}
	return strings.Split(string(bugreport.Redact(bytes.ReplaceAll(text, []byte{0}, nil))), "\n")
}

// bugReport is the file of 'dxctl doctor --report'. The only file of another program in it is
// devices.def of Windows.
type bugReport struct {
	Doctor       Report        `json:"doctor"`
	Capabilities nodeState     `json:"capabilities"`
	Devices      []gpus.Report `json:"devices"`
	ShimLog      []string      `json:"shimLog"`
	// DevicesDef is Windows' file of the devices that containers can have.
	DevicesDef []string `json:"devicesDef,omitempty"`
	// Verify is the last result of 'dxctl verify'.
	Verify *json.RawMessage `json:"verify,omitempty"`
}

// writeReport writes the file for a bug report.
func (g *gatherer) writeReport(stderr io.Writer, state nodeState, report Report) error {
	var devices []discovery.Device
	for _, d := range state.GPUs {
		devices = append(devices, d.Device)
	}
	r := bugReport{Doctor: report.withoutQuotes(), Capabilities: state, Devices: gpus.NewReports(devices, state.Config.Policy)}
	// The findings have these errors, without what they quote from files.
	c := &r.Capabilities
	c.Config.Err, c.Config.Invalid, c.Containerd.FileErr, c.Containerd.Imports = nil, nil, nil, nil
	r.ShimLog = lines(state.Config.Policy.Shim.Log)
	if g.OS == "windows" {
		r.DevicesDef = lines(filepath.Join(os.Getenv("SystemRoot"), "System32", "containers", "devices.def"))
	}
	r.Verify, _ = statefile.Read[json.RawMessage](paths.Verification(g.stateDir)) // A damaged one is left out.
	if err := bugreport.Write(g.report, r); err != nil {
		return err
	}
	fmt.Fprintf(stderr, "wrote %s; read it before you send it\n", g.report)
	return nil
}

// quoted are the parts of an error that show the content of a file: what is quoted,
// and keys that the YAML library does not quote.
var quoted = regexp.MustCompile("`[^`]*`|\"(?:[^\"\\\\]|\\\\.)*\"|'[^']*'|\\bfield .* not found in type|\\bkey .* already set")

// withoutQuotes returns the report with findings that quote no file.
func (r Report) withoutQuotes() Report {
	r.Findings = slices.Clone(r.Findings)
	for i := range r.Findings {
		r.Findings[i].Problem = quoted.ReplaceAllString(r.Findings[i].Problem, "'…'")
	}
	return r
}
