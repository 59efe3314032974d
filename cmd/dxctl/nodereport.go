package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"directx-nri/cmd/dxctl/doctor"
	"directx-nri/discovery"
	"directx-nri/internal/allocation"
	"directx-nri/internal/cli"
	"directx-nri/internal/durable"
	"directx-nri/internal/hostfiles"
	"directx-nri/internal/paths"
)

// maxLog in bytes is more than the shim's log has.
const maxLog = 4 << 20

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
	ShimLog      []string           `json:"shimLog"`
}

// writeReport writes the report without secrets.
func (o *doctorOptions) writeReport(ctx context.Context, stderr io.Writer, facts doctor.Facts, report doctor.Report) error {
	var devices []discovery.Device
	for _, d := range facts.GPUs.List {
		devices = append(devices, d.Device)
	}
	r := nodeReport{
		Dxctl: cli.Version(version), Platform: runtime.GOOS + "/" + runtime.GOARCH, Claims: doctor.Claims(facts, observe(facts), report), Doctor: report.Redact(),
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
	log, err := durable.Read(facts.Config.Policy.Shim.Log, maxLog)
	if err != nil {
		log = []byte(err.Error())
	}
	r.ShimLog = strings.Split(string(doctor.Redact(log, ids)), "\n")
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

// observe returns the facts of a Windows node that only claims need.
func observe(f doctor.Facts) (o doctor.Observations) {
	if f.OS != "windows" {
		return o
	}
	root := os.Getenv("SystemRoot")
	drive := filepath.VolumeName(root) + `\`
	o.Wine = exists(filepath.Join(root, "System32", "winecfg.exe"))
	if os.Getenv("CONTAINER_SANDBOX_MOUNT_POINT") != "" {
		o.HostProcess = "this is a HostProcess container"
	}
	// Windows creates both.
	for path, want := range map[string]string{drive + "Documents and Settings": drive + "Users", drive + "PROGRA~1": drive + "Program Files"} {
		got, _, err := hostfiles.Root("").Final(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		o.Links += path + " leads to " + got + " "
		if err == nil && !strings.EqualFold(got, want) {
			err = fmt.Errorf("%s leads to %s, not %s", path, got, want)
		}
		o.LinksErr = errors.Join(o.LinksErr, err)
	}
	if i := slices.IndexFunc(f.Shims, func(s doctor.Shim) bool { return s.Err == nil }); i >= 0 {
		o.ShimStart = fmt.Sprintf("the runtime shim starts in %s", f.Shims[i].Start.Round(10*time.Microsecond))
	}
	return o
}
