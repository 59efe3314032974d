package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"directx-nri/advertiser/resources"
	"directx-nri/cmd/dxctl/doctor"
	"directx-nri/discovery"
	"directx-nri/discovery/inventory"
	"directx-nri/internal/allocation"
	"directx-nri/internal/cli"
	"directx-nri/internal/config"
)

// maxLogTail in bytes is how much of the shim's log is packed.
const maxLogTail = 256 << 10

// bundler gathers the files of a support bundle. Files that others have written
// are never packed as they are: what we know of them is written anew.
type bundler struct {
	files []doctor.File
	// ids are the allocations' that are on record.
	ids map[string]bool
	// left tells what is not there, and why.
	left []string
}

func (o *doctorOptions) writeBundle(ctx context.Context, stderr io.Writer, facts doctor.Facts, verdict doctor.Verdict) error {
	// The verdict again, with errors that quote no file.
	facts = facts.Hush()
	verdict.Findings = doctor.Judge(facts)
	b := &bundler{ids: map[string]bool{}}
	b.allocations(ctx, facts)
	b.json("doctor.json", verdict.Report(facts))
	b.devices(facts)
	b.json("capabilities.json", o.capabilities(facts))
	b.json("runtime.json", o.runtimeStatus(facts))
	b.json("versions.json", versionsOf(facts))
	b.config(facts)
	b.inventory(facts)
	if facts.Config.Err == nil {
		b.log(facts.Config.Value.Shim.Log)
	}
	b.add("environment.txt", []byte(ourVariables(os.Environ())))
	if len(b.left) > 0 {
		b.add("left-out.txt", []byte(strings.Join(b.left, "\n")+"\n"))
	}
	err := doctor.WriteBundle(o.bundle, b.files, time.Now(), o.force)
	switch {
	case errors.Is(err, fs.ErrExist):
		return fmt.Errorf("%s is there already: name another file, or say --force to replace it", o.bundle)
	case err != nil:
		return err
	}
	fmt.Fprintf(stderr, "%s is written, with what follows; look at it before you send it\n", o.bundle)
	for _, file := range b.files {
		fmt.Fprintf(stderr, "  %-18s %d bytes\n", file.Name, len(file.Data))
	}
	return nil
}

func (b *bundler) add(name string, data []byte) {
	b.files = append(b.files, doctor.File{Name: name, Data: doctor.Redact(data, b.ids)})
}

func (b *bundler) leave(name string, why error) {
	text := strings.Join(strings.Fields(why.Error()), " ")
	b.left = append(b.left, name+": "+doctor.HushText(text))
}

func (b *bundler) json(name string, v any) {
	var text bytes.Buffer
	if err := printAs(&text, outputJSON, v); err != nil {
		b.leave(name, err)
		return
	}
	b.add(name, text.Bytes())
}

// allocations packs which allocation is whose. It comes first: what it lists is
// an ID and no token.
func (b *bundler) allocations(ctx context.Context, facts doctor.Facts) {
	if facts.Records.Folder == "" {
		b.leave("allocations.json", errors.New("the file that says where they are cannot be read"))
		return
	}
	entries, problems, err := allocation.OpenStore(facts.Records.Folder).List(ctx)
	if err != nil {
		b.leave("allocations.json", err)
		return
	}
	bundled := struct {
		Allocations []bundledAllocation `json:"allocations"`
		Problems    []string            `json:"problems,omitempty"`
	}{Allocations: []bundledAllocation{}}
	for _, e := range entries {
		b.ids[string(e.ID)] = true
		bundled.Allocations = append(bundled.Allocations, bundledAllocation{Record: e.Record, Holder: e.Holder})
	}
	for _, p := range problems {
		bundled.Problems = append(bundled.Problems, doctor.HushText(p.Err.Error()))
	}
	b.json("allocations.json", bundled)
}

// bundledAllocation is an allocation in a bundle.
type bundledAllocation struct {
	allocation.Record
	Holder *allocation.Holder `json:"holder,omitempty"`
}

func (b *bundler) devices(facts doctor.Facts) {
	if facts.GPUs.Err != nil {
		b.leave("devices.json", facts.GPUs.Err)
		return
	}
	devices := make([]discovery.Device, len(facts.GPUs.List))
	for i, d := range facts.GPUs.List {
		devices[i] = d.Device
	}
	reports := make([]deviceReport, len(devices))
	for i, a := range resources.Assign(devices, resources.FromConfig(facts.Config.Value.Resources)) {
		reports[i] = reportDevice(i, a)
	}
	b.json("devices.json", reports)
}

func (o *doctorOptions) capabilities(facts doctor.Facts) capabilitiesReport {
	r := capabilitiesReport{
		OS:         facts.OS,
		Containerd: reportContainerd(facts.Containerd, facts.OS, facts.NRI.PluginErr == nil),
		Shim:       reportShim(facts.Shims),
	}
	if facts.Windows != nil {
		w := reportWindows(*facts.Windows)
		r.windowsReport = &w
	}
	r.configured(facts.Config.Path, facts.Config.Value, errors.Join(facts.Config.Bad, facts.Config.Err), facts.Windows)
	return r
}

// runtimeStatus is what of containerd's configuration concerns us, and no more
// of it: registries' passwords stand there too.
func (o *doctorOptions) runtimeStatus(facts doctor.Facts) any {
	c := facts.Containerd
	r := newReport(c.File, c.Loaded, facts.OS, func(path string) error { _, err := os.Stat(path); return err })
	r.Config = c.ConfigPath
	return struct {
		report
		Imports []string `json:"imports,omitempty"`
		Error   string   `json:"error,omitempty"`
	}{r, c.File.Imports, errorText(c.FileErr)}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func versionsOf(facts doctor.Facts) any {
	shims := map[string]string{}
	for _, s := range facts.Shims {
		shims[s.Path] = s.Version
	}
	return struct {
		Dxctl      string            `json:"dxctl"`
		OS         string            `json:"os"`
		Arch       string            `json:"arch"`
		Containerd string            `json:"containerd,omitempty"`
		Shims      map[string]string `json:"shims"`
	}{cli.Version(version), runtime.GOOS, runtime.GOARCH, facts.Containerd.Version, shims}
}

// config packs config.yaml as we understand it. Comments are left out.
func (b *bundler) config(facts doctor.Facts) {
	switch c := facts.Config; {
	case c.Err != nil:
		b.leave("config.yaml", c.Err)
	case !c.Exists:
		b.leave("config.yaml", errors.New("there is none"))
	default:
		text, err := config.Marshal(c.Value)
		if err != nil {
			b.leave("config.yaml", err)
			return
		}
		b.add("config.yaml", text)
	}
}

// inventory packs the inventory file without comments, if it is one.
func (b *bundler) inventory(facts doctor.Facts) {
	const name, limit = "inventory.yaml", 16 << 20
	path := facts.GPUs.Inventory
	if path == "" {
		return
	}
	text, err := doctor.Tail(path, limit)
	if err == nil {
		_, err = inventory.Parse(path, text)
	}
	var document yaml.Node
	if err == nil {
		err = yaml.Unmarshal(text, &document)
	}
	if err != nil {
		b.leave(name, err)
		return
	}
	uncomment(&document)
	if text, err = yaml.Marshal(&document); err != nil {
		b.leave(name, err)
		return
	}
	b.add(name, text)
}

func uncomment(node *yaml.Node) {
	node.HeadComment, node.LineComment, node.FootComment = "", "", ""
	for _, below := range node.Content {
		uncomment(below)
	}
}

func (b *bundler) log(path string) {
	text, err := doctor.Tail(path, maxLogTail)
	if err != nil {
		b.leave("shim.log", err)
		return
	}
	b.add("shim.log", text)
}

// ourVariables returns the names of those variables of an environment that mean
// something to our programs, a line each.
func ourVariables(environment []string) string {
	var names []string
	for _, variable := range environment {
		name, _, _ := strings.Cut(variable, "=")
		upper := strings.ToUpper(name)
		if strings.HasPrefix(upper, "DIRECTX_") || slices.Contains([]string{"PATH", "PROGRAMDATA", "PROGRAMFILES", "KUBECONFIG", "CONTAINERD_ADDRESS", "CONTAINERD_NAMESPACE"}, upper) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return strings.Join(names, "\n") + "\n"
}
