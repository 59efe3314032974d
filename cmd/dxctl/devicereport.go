package main

import (
	"directx-nri/advertiser/resources"
	"directx-nri/discovery"
)

// deviceReport is what is told of a device. The names of its fields are for
// scripts, and stay.
type deviceReport struct {
	// Index is the device's place in the list, from 0.
	Index       int    `json:"index" yaml:"index"`
	InstanceID  string `json:"instanceID" yaml:"instanceID"`
	Description string `json:"description" yaml:"description"`
	// Kind is display, compute or none: what the resources' rules go by.
	Kind    string `json:"kind" yaml:"kind"`
	Display bool   `json:"display" yaml:"display"`
	Compute bool   `json:"compute" yaml:"compute"`
	// Resource is the extended resource that offers it to Replicas containers. Both
	// are empty where none does, and NotOffered says why; all three are where the
	// configuration is not known.
	Resource   string `json:"resource,omitempty" yaml:"resource,omitempty"`
	Replicas   int    `json:"replicas,omitempty" yaml:"replicas,omitempty"`
	NotOffered string `json:"notOffered,omitempty" yaml:"notOffered,omitempty"`
	// Health is "healthy", or what is wrong.
	Health       string   `json:"health" yaml:"health"`
	Notes        []string `json:"notes,omitempty" yaml:"notes,omitempty"`
	Vendor       string   `json:"vendor" yaml:"vendor"`
	Manufacturer string   `json:"manufacturer,omitempty" yaml:"manufacturer,omitempty"`
	LocationPath string   `json:"locationPath,omitempty" yaml:"locationPath,omitempty"`
	LUID         string   `json:"luid,omitempty" yaml:"luid,omitempty"`
	// DedicatedMemory is in bytes.
	DedicatedMemory uint64 `json:"dedicatedMemory" yaml:"dedicatedMemory"`
	Integrated      bool   `json:"integrated" yaml:"integrated"`
	Detachable      bool   `json:"detachable" yaml:"detachable"`
	// Software tells a software renderer.
	Software  bool    `json:"software" yaml:"software"`
	NUMANode  *int    `json:"numaNode,omitempty" yaml:"numaNode,omitempty"`
	BusNumber *uint32 `json:"busNumber,omitempty" yaml:"busNumber,omitempty"`
	Address   *uint32 `json:"address,omitempty" yaml:"address,omitempty"`
	// Status and Problem are Plug and Play's.
	Status          uint32       `json:"status" yaml:"status"`
	Problem         uint32       `json:"problem" yaml:"problem"`
	DriverKey       string       `json:"driverKey,omitempty" yaml:"driverKey,omitempty"`
	DriverVersion   string       `json:"driverVersion,omitempty" yaml:"driverVersion,omitempty"`
	DriverStorePath string       `json:"driverStorePath,omitempty" yaml:"driverStorePath,omitempty"`
	System32        []fileReport `json:"system32,omitempty" yaml:"system32,omitempty"`
	SysWOW64        []fileReport `json:"sysWOW64,omitempty" yaml:"sysWOW64,omitempty"`
	DeviceNodes     []fileReport `json:"deviceNodes,omitempty" yaml:"deviceNodes,omitempty"`
	Libraries       []fileReport `json:"libraries,omitempty" yaml:"libraries,omitempty"`
}

// fileReport is a file, relative to the driver store path where it is one of the
// driver's, and what it is in a container.
type fileReport struct {
	Source      string `json:"source" yaml:"source"`
	Destination string `json:"destination" yaml:"destination"`
	// Missing tells that it is not on disk; a container starts without it. It is
	// told of one GPU by itself only, as is Problem: why that could not be found
	// out.
	Missing bool   `json:"missing,omitempty" yaml:"missing,omitempty"`
	Problem string `json:"problem,omitempty" yaml:"problem,omitempty"`
}

// kindNone is the kind of a device that is never offered.
const kindNone = "none"

func reportDevice(index int, a resources.Assigned) deviceReport {
	d := a.Device
	r := deviceReport{
		Index: index, InstanceID: d.InstanceID, Description: d.Description,
		Kind: string(d.Kind()), Display: d.SupportsDisplay, Compute: d.SupportsCompute,
		NotOffered: a.Reason, Health: d.Health.String(), Notes: d.Notes, Vendor: d.VendorID.String(), Manufacturer: d.Manufacturer,
		LocationPath: d.LocationPath, DedicatedMemory: d.DedicatedMemory,
		Integrated: d.Integrated, Detachable: d.Detachable, Software: d.Software,
		NUMANode: d.NUMANode, BusNumber: d.BusNumber, Address: d.Address, Status: d.Status, Problem: d.Problem,
		DriverKey: d.DriverKey, DriverVersion: d.DriverVersion, DriverStorePath: d.DriverStorePath,
		System32: runtimeFileReports(d.System32), SysWOW64: runtimeFileReports(d.SysWOW64),
	}
	if a.Rule != nil {
		r.Resource, r.Replicas = a.Rule.Name, a.Rule.Replicas
	}
	if d.LUID != 0 {
		r.LUID = d.LUID.String()
	}
	if r.Kind == "" {
		r.Kind = kindNone
	}
	for _, node := range d.DeviceNodes {
		r.DeviceNodes = append(r.DeviceNodes, fileReport{Source: node.Path, Destination: node.ContainerPath})
	}
	for _, library := range d.Libraries {
		r.Libraries = append(r.Libraries, fileReport{Source: library.Source, Destination: library.Destination})
	}
	return r
}

func runtimeFileReports(files []discovery.RuntimeFile) []fileReport {
	var reports []fileReport
	for _, f := range files {
		reports = append(reports, fileReport{Source: f.Source, Destination: f.Destination})
	}
	return reports
}
