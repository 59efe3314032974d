package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"
	"slices"
	"strings"

	"directx-nri/advertiser/resources"
	"directx-nri/cmd/dxctl/terminal"
	"directx-nri/discovery"
	"directx-nri/internal/hostfiles"
	"directx-nri/internal/winpath"
)

// deviceDetail is what is told of one device by itself.
type deviceDetail struct {
	deviceReport `yaml:",inline"`
	// FilesChecked tells that the files were looked for on disk.
	FilesChecked bool `json:"filesChecked" yaml:"filesChecked"`
}

// checkHostRoot returns an error unless --host-root, where it is given, is a folder.
func checkHostRoot(root string) error {
	if root == "" {
		return nil
	}
	info, err := os.Stat(root)
	if err == nil && !info.IsDir() {
		err = fmt.Errorf("%s is no folder", root)
	}
	if err != nil {
		return fmt.Errorf("--host-root: %w; name the folder in which the node's files are seen", err)
	}
	return nil
}

// tellOne tells all that is known of a device.
func (o *devicesOptions) tellOne(stdout io.Writer, index int, a resources.Assigned) error {
	d := a.Device
	if o.output == outputName {
		_, err := fmt.Fprintln(stdout, terminal.Printable(d.Name()))
		return err
	}
	detail := deviceDetail{deviceReport: reportDevice(index, a)}
	root := o.hostRoot
	if root == "" && runtime.GOOS != "windows" {
		root = "/"
	}
	unchecked := detail.check(hostfiles.Root(root))
	if o.output == outputJSON || o.output == outputYAML {
		return printAs(stdout, o.output, detail)
	}
	to := terminal.Of(stdout, os.Getenv)
	if o.output == outputWide {
		to.Width = 0
	}
	return printDetail(stdout, to, a, detail, unchecked)
}

// check looks for the files on disk, or returns why that cannot be done here.
func (d *deviceDetail) check(root hostfiles.Root) (unchecked string) {
	store := d.DriverStorePath
	if len(d.System32)+len(d.SysWOW64) > 0 {
		if store == "" {
			return "the driver store path is not known"
		}
		if winpath.IsAbs(store) {
			// An inventory may be looked at far from its node.
			if _, err := root.Resolve(drive(store)); errors.Is(err, fs.ErrNotExist) {
				return fmt.Sprintf("there is no %s in %s, so that this is not their node; --host-root names another folder", drive(store), root)
			}
		}
	}
	for _, list := range []struct {
		files  []fileReport
		folder string
	}{{d.System32, store}, {d.SysWOW64, store}, {d.DeviceNodes, ""}, {d.Libraries, ""}} {
		for i := range list.files {
			list.files[i].look(root, list.folder)
		}
	}
	d.FilesChecked = true
	return ""
}

// look tells whether the file is on disk; folder is what its source is relative
// to.
func (f *fileReport) look(root hostfiles.Root, folder string) {
	path := f.Source
	if folder != "" {
		path = winpath.Join(folder, f.Source)
	}
	switch _, err := root.Resolve(path); {
	case errors.Is(err, fs.ErrNotExist):
		f.Missing = true
	case err != nil:
		f.Problem = err.Error()
	}
}

// drive returns the root of the drive that an absolute path is on, and of any
// other path the path.
func drive(path string) string {
	if len(path) < 3 || path[1] != ':' {
		return path
	}
	return path[:2] + `\`
}

// printDetail tells a person of one device.
func printDetail(w io.Writer, to terminal.Terminal, a resources.Assigned, detail deviceDetail, unchecked string) error {
	d := a.Device
	var text strings.Builder
	title := fmt.Sprintf("GPU %d: %s", detail.Index, terminal.Printable(orNothing(d.Description)))
	fmt.Fprintln(&text, to.Paint(terminal.Bold, title))
	facts := []struct {
		name string
		terminal.Cell
	}{
		{"Health", health(a)},
		{"Kinds", terminal.Cell{Text: kinds(d)}},
		{"Resource", terminal.Cell{Text: sharing(a)}},
		{"Properties", terminal.Cell{Text: properties(d)}},
		{"Location path", terminal.Cell{Text: d.LocationPath}},
		{"LUID", terminal.Cell{Text: detail.LUID}},
		{"Instance ID", terminal.Cell{Text: d.InstanceID}},
		{"Vendor", terminal.Cell{Text: vendor(d)}},
		{"Memory", terminal.Cell{Text: memory(d)}},
		{"NUMA node", terminal.Cell{Text: numa(d)}},
		{"Plug and Play", terminal.Cell{Text: plugAndPlay(d)}},
		{"Driver", terminal.Cell{Text: d.DriverVersion}},
		{"Driver store", terminal.Cell{Text: d.DriverStorePath}},
		{"Driver key", terminal.Cell{Text: d.DriverKey}},
	}
	for _, note := range d.Notes {
		facts = append(facts, struct {
			name string
			terminal.Cell
		}{"Note", terminal.Cell{Text: note, Style: terminal.Warn}})
	}
	for _, fact := range facts {
		if fact.Text != "" && fact.Text != nothing {
			fmt.Fprintf(&text, "  %-14s %s\n", fact.name, to.Paint(fact.Style, terminal.Printable(fact.Text)))
		}
	}
	if err := printFiles(&text, to, detail); err != nil {
		return err
	}
	if unchecked != "" {
		fmt.Fprintf(&text, "\nThe files were not looked for: %s.\n", terminal.Printable(unchecked))
	}
	_, err := io.WriteString(w, text.String())
	return err
}

// printFiles prints what a container is given, list by list.
func printFiles(w io.Writer, to terminal.Terminal, detail deviceDetail) error {
	for _, list := range []struct {
		name  string
		files []fileReport
	}{
		{`Files in C:\Windows\System32 of a container`, detail.System32},
		{`Files in C:\Windows\SysWOW64 of a container`, detail.SysWOW64},
		{"Device nodes in a container", detail.DeviceNodes},
		{"Libraries in a container", detail.Libraries},
	} {
		if len(list.files) == 0 {
			continue
		}
		count := fmt.Sprint(len(list.files))
		missing := len(slices.DeleteFunc(slices.Clone(list.files), func(f fileReport) bool { return !f.Missing }))
		if missing > 0 {
			count += fmt.Sprintf(", %d missing on disk", missing)
		}
		fmt.Fprintf(w, "\n%s (%s):\n", list.name, count)
		table := terminal.Table{Columns: []terminal.Column{
			{Title: "  IN THE CONTAINER", Give: 3, Least: 20}, {Title: "ON THE NODE", Give: 1, Least: 20}, {Title: "ON DISK", Give: 2, Least: 10},
		}}
		for _, f := range list.files {
			table.Add(terminal.Cell{Text: "  " + f.Destination}, terminal.Cell{Text: f.Source}, onDisk(f, detail.FilesChecked))
		}
		if err := table.Print(w, to); err != nil {
			return err
		}
	}
	return nil
}

func onDisk(f fileReport, checked bool) terminal.Cell {
	switch {
	case !checked:
		return terminal.Cell{Text: nothing}
	case f.Problem != "":
		return terminal.Cell{Text: f.Problem, Style: terminal.Bad}
	case f.Missing:
		return terminal.Cell{Text: "missing", Style: terminal.Bad}
	}
	return terminal.Cell{Text: "there", Style: terminal.Good}
}

// sharing says which resource offers a device, to how many containers.
func sharing(a resources.Assigned) string {
	switch {
	case a.Rule == nil:
		return a.Reason
	case a.Rule.Replicas == 1:
		return a.Rule.Name
	}
	return fmt.Sprintf("%s, shared by up to %d containers", a.Rule.Name, a.Rule.Replicas)
}

func properties(d discovery.Device) string {
	var list []string
	for _, p := range []struct {
		is   bool
		name string
	}{
		{d.Integrated, "integrated"}, {d.Detachable, "detachable"}, {d.Software, "software renderer"},
	} {
		if p.is {
			list = append(list, p.name)
		}
	}
	return strings.Join(list, ", ")
}

func vendor(d discovery.Device) string {
	name := d.VendorID.String()
	if d.Manufacturer != "" && d.Manufacturer != name {
		name += " (" + d.Manufacturer + ")"
	}
	return name
}

// plugAndPlay is what Windows says of the device's place and state, "" when it
// says nothing.
func plugAndPlay(d discovery.Device) string {
	var list []string
	if d.BusNumber != nil {
		list = append(list, fmt.Sprintf("bus %d", *d.BusNumber))
	}
	if d.Address != nil {
		list = append(list, fmt.Sprintf("device %d, function %d", *d.Address>>16, *d.Address&0xFFFF))
	}
	if d.Status != 0 {
		list = append(list, fmt.Sprintf("status 0x%08X", d.Status))
	}
	if d.Problem != 0 {
		list = append(list, fmt.Sprintf("problem code %d", d.Problem))
	}
	return strings.Join(list, ", ")
}
