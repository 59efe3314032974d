package main

import (
	"io"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"

	"directx-nri/advertiser/resources"
	"directx-nri/cmd/dxctl/terminal"
	"directx-nri/discovery"
)

// nothing stands in a table for what a device does not have.
const nothing = "-"

// printDevices prints a line for each device. The order in which columns give way
// is that of what a person misses least.
func printDevices(w io.Writer, to terminal.Terminal, devices []resources.Assigned, wide bool) error {
	table := terminal.Table{Columns: []terminal.Column{
		{Title: "INDEX", Right: true},
		{Title: "DESCRIPTION", Give: 2, Least: 15},
		{Title: "VENDOR", Give: 3},
		{Title: "MEMORY", Right: true, Give: 6},
		{Title: "DRIVER", Give: 4},
		{Title: "KINDS", Give: 7},
		{Title: "LOCATION PATH", Give: 5, Least: 20},
		{Title: "HEALTH", Give: 1, Least: 16},
	}}
	if wide {
		to.Width = 0
		for _, title := range []string{"RESOURCE", "REPLICAS", "LUID", "NUMA", "FILES", "INSTANCE ID", "NOTES"} {
			table.Columns = append(table.Columns, terminal.Column{Title: title})
		}
	}
	for i, a := range devices {
		d := a.Device
		row := []terminal.Cell{
			{Text: strconv.Itoa(i)}, {Text: orNothing(d.Description)}, {Text: d.VendorID.String()}, {Text: memory(d)},
			{Text: orNothing(d.DriverVersion)}, {Text: kinds(d)}, {Text: orNothing(d.LocationPath)}, health(a),
		}
		if wide {
			files := len(d.System32) + len(d.SysWOW64) + len(d.DeviceNodes) + len(d.Libraries)
			resource, replicas := offered(a)
			row = append(row, terminal.Cell{Text: resource}, terminal.Cell{Text: replicas}, terminal.Cell{Text: luid(d)}, terminal.Cell{Text: numa(d)}, terminal.Cell{Text: strconv.Itoa(files)},
				terminal.Cell{Text: d.InstanceID}, terminal.Cell{Text: orNothing(strings.Join(d.Notes, "; "))})
		}
		table.Add(row...)
	}
	return table.Print(w, to)
}

func orNothing(text string) string {
	if text == "" {
		return nothing
	}
	return text
}

func memory(d discovery.Device) string {
	if d.DedicatedMemory == 0 {
		return nothing
	}
	return humanize.IBytes(d.DedicatedMemory)
}

// kinds says what d is for, as long as it is offered at all.
func kinds(d discovery.Device) string {
	var kinds []string
	if d.SupportsDisplay {
		kinds = append(kinds, string(discovery.KindDisplay))
	}
	if d.SupportsCompute {
		kinds = append(kinds, string(discovery.KindCompute))
	}
	if d.Kind() == discovery.KindNone {
		return kindNone
	}
	return strings.Join(kinds, ", ")
}

func luid(d discovery.Device) string {
	if d.LUID == 0 {
		return nothing
	}
	return d.LUID.String()
}

func numa(d discovery.Device) string {
	if d.NUMANode == nil {
		return nothing
	}
	return strconv.Itoa(*d.NUMANode)
}

// offered returns the resource that offers a device, and to how many containers.
func offered(a resources.Assigned) (resource, replicas string) {
	if a.Rule == nil {
		return nothing, nothing
	}
	return a.Rule.Name, strconv.Itoa(a.Rule.Replicas)
}

// health says whether a container can be given a device, and why not.
func health(a resources.Assigned) terminal.Cell {
	d := a.Device
	switch {
	case !d.Health.OK():
		return terminal.Cell{Text: d.Health.Reason, Style: terminal.Bad}
	case d.Software:
		return terminal.Cell{Text: "software renderer: not offered", Style: terminal.Warn}
	case d.Kind() == discovery.KindNone:
		return terminal.Cell{Text: "no graphics, no compute: not offered", Style: terminal.Warn}
	case a.Reason == resources.ReasonNoRule:
		return terminal.Cell{Text: "no resource is for it: not offered", Style: terminal.Warn}
	case d.LocationPath == "" && len(d.DeviceNodes) == 0:
		return terminal.Cell{Text: "no location path: no container can have it", Style: terminal.Warn}
	}
	return terminal.Cell{Text: d.Health.String(), Style: terminal.Good}
}
