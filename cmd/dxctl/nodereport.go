package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"

	"directx-nri/cmd/dxctl/doctor"
	"directx-nri/discovery"
	"directx-nri/internal/allocation"
	"directx-nri/internal/cli"
	"directx-nri/internal/durable"
	"directx-nri/internal/paths"
)

// maxLogLines is the part of the shim's log in a report.
const maxLogLines = 500

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
	// Variables are the names of environment variables that affect our programs.
	Variables []string `json:"variables"`
	ShimLog   []string `json:"shimLog"`
}

// writeReport writes the report without secrets.
func (o *doctorOptions) writeReport(ctx context.Context, stderr io.Writer, facts doctor.Facts, report doctor.Report) error {
	var devices []discovery.Device
	for _, d := range facts.GPUs.List {
		devices = append(devices, d.Device)
	}
	r := nodeReport{
		Dxctl: cli.Version(version), Platform: runtime.GOOS + "/" + runtime.GOARCH, Claims: doctor.Claims(facts, o.observe(ctx, facts)), Doctor: report.Redact(),
		Capabilities: reportCapabilities(facts), Devices: reportDevices(devices, facts.Config.Policy.Resources),
		Variables: variableNames(os.Environ()),
	}
	// Doctor has the errors, without what they quote.
	c := &r.Capabilities
	c.Config.Err, c.Config.Invalid, c.Containerd.FileErr, c.Containerd.Imports, c.Problems = nil, nil, nil, nil, nil
	ids := map[string]bool{} // They look like tokens.
	// Doctor reports an error.
	r.Allocations, _, _ = allocation.OpenStore(paths.Allocations(o.stateDir)).List(ctx)
	for _, e := range r.Allocations {
		ids[string(e.ID)] = true
	}
	log, err := durable.Read(facts.Config.Policy.Shim.Log, math.MaxInt64)
	if err != nil {
		log = []byte(err.Error())
	}
	r.ShimLog = strings.Split(strings.TrimSpace(string(doctor.Redact(log, ids))), "\n")
	r.ShimLog = r.ShimLog[max(0, len(r.ShimLog)-maxLogLines):]
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

// variableNames returns the names of environment variables that affect our programs.
func variableNames(environment []string) []string {
	var names []string
	for _, variable := range environment {
		name, _, _ := strings.Cut(variable, "=")
		upper := strings.ToUpper(name)
		if strings.HasPrefix(upper, "DIRECTX_") || slices.Contains([]string{"PATH", "PROGRAMDATA", "PROGRAMFILES", "CONTAINERD_ADDRESS", "CONTAINERD_NAMESPACE"}, upper) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
