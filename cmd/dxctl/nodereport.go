package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"directx-nri/cmd/dxctl/doctor"
	"directx-nri/discovery"
	"directx-nri/internal/durable"
)

// maxLog in bytes is more than the shim's log has.
const maxLog = 4 << 20

// nodeReport is the file of 'dxctl doctor --report': what is known of a node, in our
// own form. It has no file of others.
type nodeReport struct {
	Claims       []doctor.Claim `json:"claims,omitempty"`
	Doctor       doctor.Report  `json:"doctor"`
	Capabilities doctor.Facts   `json:"capabilities"`
	Devices      []deviceReport `json:"devices"`
	ShimLog      []string       `json:"shimLog"`
}

// writeReport writes the report without secrets.
func (o *doctorOptions) writeReport(stderr io.Writer, facts doctor.Facts, report doctor.Report) error {
	var devices []discovery.Device
	for _, d := range facts.GPUs.List {
		devices = append(devices, d.Device)
	}
	r := nodeReport{Doctor: report.Redact(), Capabilities: facts, Devices: reportDevices(devices, facts.Config.Policy.Resources)}
	// Doctor has the errors, without what they quote.
	c := &r.Capabilities
	c.Config.Err, c.Config.Invalid, c.Containerd.FileErr, c.Containerd.Imports = nil, nil, nil, nil
	if o.os == "windows" && !exists(filepath.Join(os.Getenv("SystemRoot"), "System32", "winecfg.exe")) { // not Wine
		r.Claims = doctor.Claims(facts, r.Doctor.Findings)
	}
	log, err := durable.Read(facts.Config.Policy.Shim.Log, maxLog)
	if err != nil {
		log = []byte(err.Error())
	}
	r.ShimLog = strings.Split(string(doctor.Redact(log)), "\n")
	var text bytes.Buffer
	if err := printAs(&text, outputJSON, r); err != nil {
		return err
	}
	if err := durable.Create(o.report, doctor.Redact(text.Bytes()), 0o600); err != nil {
		return err
	}
	fmt.Fprintf(stderr, "wrote %s; read it before you send it\n", o.report)
	return nil
}
