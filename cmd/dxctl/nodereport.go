package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"runtime"
	"strings"

	"directx-nri/cmd/dxctl/doctor"
	"directx-nri/discovery"
	"directx-nri/internal/allocation"
	"directx-nri/internal/cli"
	"directx-nri/internal/durable"
	"directx-nri/internal/paths"
)

// maxLog in bytes is the part of the shim's log in a report.
const maxLog = 128 << 10

// nodeReport is the file of 'dxctl doctor --report': what is known of a node, in our
// own form. It has no file of others.
type nodeReport struct {
	Dxctl        string             `json:"dxctl"`
	Platform     string             `json:"platform"`
	Claims       []doctor.Claim     `json:"claims,omitempty"`
	Doctor       doctor.Report      `json:"doctor"`
	Capabilities capabilitiesReport `json:"capabilities"`
	Devices      []deviceReport     `json:"devices"`
	Allocations  []allocation.Entry `json:"allocations"`
	// ShimLog is the end of the shim's log.
	ShimLog []string `json:"shimLog"`
}

// writeReport writes the report without secrets.
func (o *doctorOptions) writeReport(ctx context.Context, stderr io.Writer, facts doctor.Facts, report doctor.Report) error {
	var devices []discovery.Device
	for _, d := range facts.GPUs.List {
		devices = append(devices, d.Device)
	}
	r := nodeReport{
		Dxctl: cli.Version(version), Platform: runtime.GOOS + "/" + runtime.GOARCH, Claims: doctor.Claims(facts, o.observe(ctx, facts), report), Doctor: report.Redact(),
		Capabilities: reportCapabilities(facts), Devices: reportDevices(devices, facts.Config.Policy.Resources),
	}
	// Doctor has the errors, without what they quote.
	c := &r.Capabilities
	c.Config.Err, c.Config.Invalid, c.Containerd.FileErr, c.Containerd.Imports = nil, nil, nil, nil
	ids := map[string]bool{} // They look like tokens.
	// Doctor reports an error.
	r.Allocations, _, _ = allocation.OpenStore(paths.Allocations(o.stateDir)).List(ctx)
	for _, e := range r.Allocations {
		ids[string(e.ID)] = true
	}
	r.ShimLog = strings.Split(string(doctor.Redact(endOf(facts.Config.Policy.Shim.Log), ids)), "\n")
	var text bytes.Buffer
	if err := printAs(&text, outputJSON, r); err != nil {
		return err
	}
	if err := durable.Create(o.report, doctor.Redact(text.Bytes(), ids), 0o600); err != nil {
		return err
	}
	fmt.Fprintf(stderr, "wrote %s; read it before you send it\n", o.report)
	return nil
}

// endOf returns the last lines of a log, or why it cannot be read.
func endOf(path string) []byte {
	file, err := durable.Open(path)
	if err != nil {
		return []byte(err.Error())
	}
	defer func() { _ = file.Close() }()
	end, err := file.Seek(0, io.SeekEnd)
	start := max(0, end-maxLog)
	log := make([]byte, end-start)
	if err == nil {
		_, err = file.ReadAt(log, start)
	}
	if err != nil {
		return []byte(err.Error())
	}
	if _, whole, found := bytes.Cut(log, []byte("\n")); found && start > 0 { // It starts within a line.
		log = whole
	}
	return bytes.TrimSpace(log)
}
