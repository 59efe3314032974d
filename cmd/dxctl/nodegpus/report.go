package nodegpus

import (
	"cmp"
	"fmt"

	"github.com/directx-nri/directx-nri/advertiser/resources"
	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/policy"
)

// Report describes a GPU. The names of its fields are stable.
type Report struct {
	// Index is the device's place in the list, from 0.
	Index       int    `json:"index"`
	InstanceID  string `json:"instanceID"`
	Description string `json:"description"`
	// Kind is display, compute or none.
	Kind    string `json:"kind"`
	Display bool   `json:"display"`
	Compute bool   `json:"compute"`
	// Resource is the extended resource that offers the device to Replicas
	// containers. NotOffered is why there is none.
	Resource   string `json:"resource,omitempty"`
	Replicas   int    `json:"replicas,omitempty"`
	NotOffered string `json:"notOffered,omitempty"`
	// Health is "healthy" or the problem.
	Health          string                  `json:"health"`
	Notes           []string                `json:"notes,omitempty"`
	Vendor          string                  `json:"vendor"`
	Manufacturer    string                  `json:"manufacturer,omitempty"`
	LocationPath    string                  `json:"locationPath,omitempty"`
	LUID            string                  `json:"luid,omitempty"`
	DedicatedMemory uint64                  `json:"dedicatedMemory"` // in bytes
	Integrated      bool                    `json:"integrated"`
	Detachable      bool                    `json:"detachable"`
	Software        bool                    `json:"software"`
	NUMANode        *int                    `json:"numaNode,omitempty"`
	BusNumber       *uint32                 `json:"busNumber,omitempty"`
	Address         *uint32                 `json:"address,omitempty"`
	Status          string                  `json:"status,omitempty"`  // Windows' flags of the device
	Problem         uint32                  `json:"problem,omitempty"` // Windows' problem code
	DriverKey       string                  `json:"driverKey,omitempty"`
	DriverVersion   string                  `json:"driverVersion,omitempty"`
	DriverStorePath string                  `json:"driverStorePath,omitempty"`
	System32        []discovery.RuntimeFile `json:"system32,omitempty"`
	SysWOW64        []discovery.RuntimeFile `json:"sysWOW64,omitempty"`
	DeviceNodes     []DeviceNode            `json:"deviceNodes,omitempty"`
	Libraries       []discovery.Library     `json:"libraries,omitempty"`
}

// DeviceNode is a device node on the host and in the container.
type DeviceNode struct {
	Source      string `json:"source"`
	Destination string `json:"destination"`
}

// NewReports returns the reports of devices, with the resources to which the policy assigns them on a
// node with the operating system nodeOS, "" if it is unknown.
func NewReports(devices []discovery.Device, p policy.Policy, nodeOS string) []Report {
	reports := make([]Report, len(devices))
	for i, d := range resources.Match(devices, p, nodeOS) {
		r := Report{
			Index: i, InstanceID: d.InstanceID, Description: d.Description,
			Kind: cmp.Or(string(d.Kind()), "none"), Display: d.SupportsDisplay, Compute: d.SupportsCompute,
			NotOffered: d.Reason, Health: d.Health.String(), Notes: d.Notes, Vendor: d.VendorID.Name(), Manufacturer: d.Manufacturer,
			LocationPath: d.LocationPath, DedicatedMemory: d.DedicatedMemory,
			Integrated: d.Integrated, Detachable: d.Detachable, Software: d.Software,
			NUMANode: d.NUMANode, BusNumber: d.BusNumber, Address: d.Address, Problem: d.Problem,
			DriverKey: d.DriverKey, DriverVersion: d.DriverVersion, DriverStorePath: d.DriverStorePath,
			System32: d.System32, SysWOW64: d.SysWOW64, Libraries: d.Libraries,
		}
		if d.Rule != nil {
			r.Resource, r.Replicas = d.Rule.Name, d.Rule.Replicas
		}
		if d.LUID != 0 {
			r.LUID = d.LUID.String()
		}
		if d.Status != 0 {
			r.Status = fmt.Sprintf("0x%08X", d.Status)
		}
		for _, node := range d.DeviceNodes {
			r.DeviceNodes = append(r.DeviceNodes, DeviceNode{Source: node.Path, Destination: node.ContainerPath})
		}
		reports[i] = r
	}
	return reports
}
