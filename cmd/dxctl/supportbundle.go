package main

import (
	"archive/zip"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"directx-nri/cmd/dxctl/doctor"
	"directx-nri/discovery"
	"directx-nri/internal/allocation"
	"directx-nri/internal/cli"
	"directx-nri/internal/durable"
)

// maxLogTail in bytes is the part of the shim's log in a support bundle.
const maxLogTail = 256 << 10

// supportBundle is a zip file with what is known of a node. It has no file of
// others: what is known of them is written in our own form.
type supportBundle struct {
	zip *zip.Writer
	// ids are those of allocations, which look like tokens.
	ids   map[string]bool
	names []string
	// omitted are files that are missing, and why.
	omitted []string
}

// writeBundle writes the support bundle. The errors in facts are redacted.
func (o *doctorOptions) writeBundle(ctx context.Context, stderr io.Writer, facts doctor.Facts) error {
	var buffer bytes.Buffer
	b := &supportBundle{zip: zip.NewWriter(&buffer), ids: map[string]bool{}}
	b.addAllocations(ctx, facts.Records.Dir)
	b.addJSON("doctor.json", doctor.Examine(facts), nil)
	b.addJSON("devices.json", reportDevices(devicesOf(facts), facts.Config.Policy.Resources), facts.GPUs.Err)
	b.addJSON("policy.json", facts.Config.Policy, facts.Config.Err)
	b.addJSON("capabilities.json", reportCapabilities(facts), nil)
	b.addJSON("runtime.json", reportStatus(facts), facts.Containerd.FileErr)
	shims := map[string]string{}
	for _, s := range facts.Shims {
		shims[s.Path] = s.Version
	}
	b.addJSON("versions.json", map[string]any{
		"dxctl": cli.Version(version), "os": runtime.GOOS, "arch": runtime.GOARCH, "containerd": facts.Containerd.Version, "shims": shims,
	}, nil)
	log, err := doctor.Tail(facts.Config.Policy.Shim.Log, maxLogTail)
	b.add("shim.log", log, err)
	b.add("environment.txt", []byte(variableNames(os.Environ())), nil)
	if len(b.omitted) > 0 {
		b.add("omitted.txt", []byte(strings.Join(b.omitted, "\n")+"\n"), nil)
	}
	if err := b.zip.Close(); err != nil {
		return fmt.Errorf("pack %s: %w", o.bundle, err)
	}
	write := durable.Create
	if o.force {
		write = durable.Replace
	}
	if err := write(o.bundle, buffer.Bytes(), 0o600); err != nil {
		return err
	}
	fmt.Fprintf(stderr, "%s contains %s; read it before you send it\n", o.bundle, strings.Join(b.names, ", "))
	return nil
}

// add adds a file, or the reason why there is none.
func (b *supportBundle) add(name string, data []byte, err error) {
	var w io.Writer
	if err == nil {
		w, err = b.zip.CreateHeader(&zip.FileHeader{Name: name, Method: zip.Deflate, Modified: time.Now().UTC()})
	}
	if err == nil {
		_, err = w.Write(doctor.Redact(data, b.ids))
	}
	if err != nil {
		b.omitted = append(b.omitted, name+": "+doctor.RedactQuotes(strings.Join(strings.Fields(err.Error()), " ")))
		return
	}
	b.names = append(b.names, name)
}

func (b *supportBundle) addJSON(name string, v any, err error) {
	var text bytes.Buffer
	err = errors.Join(err, printAs(&text, outputJSON, v))
	b.add(name, text.Bytes(), err)
}

// addAllocations adds the allocations, with their IDs and without tokens.
func (b *supportBundle) addAllocations(ctx context.Context, dir string) {
	entries, problems, err := allocation.OpenStore(dir).List(ctx)
	type entry struct {
		allocation.Record
		Holder *allocation.Holder `json:"holder,omitempty"`
	}
	list := struct {
		Allocations []entry  `json:"allocations"`
		Problems    []string `json:"problems,omitempty"`
	}{Allocations: []entry{}}
	for _, e := range entries {
		b.ids[string(e.ID)] = true
		list.Allocations = append(list.Allocations, entry{e.Record, e.Holder})
	}
	for _, p := range problems {
		list.Problems = append(list.Problems, doctor.RedactQuotes(p.Err.Error()))
	}
	b.addJSON("allocations.json", list, err)
}

func devicesOf(f doctor.Facts) []discovery.Device {
	var devices []discovery.Device
	for _, d := range f.GPUs.List {
		devices = append(devices, d.Device)
	}
	return devices
}

// variableNames returns the names of environment variables that affect our programs.
func variableNames(environment []string) string {
	var names []string
	for _, variable := range environment {
		name, _, _ := strings.Cut(variable, "=")
		upper := strings.ToUpper(name)
		if strings.HasPrefix(upper, "DIRECTX_") || slices.Contains([]string{"PATH", "PROGRAMDATA", "PROGRAMFILES", "CONTAINERD_ADDRESS", "CONTAINERD_NAMESPACE"}, upper) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return strings.Join(names, "\n") + "\n"
}
