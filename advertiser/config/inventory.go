package config

import (
	"cmp"
	"fmt"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/discovery/nvidia"
	"github.com/directx-nri/directx-nri/internal/pci"
	"github.com/directx-nri/directx-nri/internal/winpath"
)

// inventoryDevice is a device in an inventory. The keys that [discovery.Device] has in JSON, too,
// are decoded into it.
type inventoryDevice struct {
	discovery.Device
	LUID         string `json:"luid"`
	PCIAddress   string
	Driver       struct{ Version, StorePath string }
	RuntimeFiles struct{ System32, SysWOW64 []discovery.RuntimeFile }
	Linux        struct {
		DeviceNodes []discovery.DeviceNode
		Libraries   []discovery.Library
	}
}

// IsInventory reports whether the file at path has the kind of an inventory. Errors are left to who reads
// it, as a configuration.
func (c Compiler) IsInventory(path string) bool {
	var head struct{ Kind string }
	c.InspectOnly = true
	data, err := c.read(path)
	return err == nil && yaml.Unmarshal(data, &head) == nil && head.Kind == "Inventory"
}

// ParseInventory returns the devices of an inventory in the order of the file.
func ParseInventory(data []byte) ([]discovery.Device, error) {
	document, err := parse(data)
	if err != nil {
		return nil, err
	}
	if err := validate(document, inventorySchema); err != nil {
		return nil, err
	}
	edit(document, "devices.*.dedicatedMemory", asBytes)
	edit(document, "devices.*.runtimeFiles.*.*", asMapping("source"))
	edit(document, "devices.*.linux.deviceNodes.*", asMapping("path"))
	edit(document, "devices.*.linux.libraries.*", asMapping("source"))
	var file struct{ Devices []inventoryDevice }
	if err := decode(document, &file); err != nil {
		return nil, err
	}
	devices := []discovery.Device{}
	for _, device := range file.Devices {
		devices = append(devices, device.build())
	}
	if err := checkDevices(devices); err != nil {
		return nil, err
	}
	nvidia.DropOnly(devices)
	return devices, nil
}

// build returns the device that the file describes, with the defaults of the destinations.
func (i inventoryDevice) build() discovery.Device {
	dev := i.Device
	dev.LUID, _ = discovery.ParseLUID(i.LUID) // The schema ensures its form.
	dev.VendorID = cmp.Or(dev.VendorID, pci.VendorOf(dev.InstanceID))
	dev.DriverVersion, dev.DriverStorePath = i.Driver.Version, i.Driver.StorePath
	dev.System32, dev.SysWOW64 = i.RuntimeFiles.System32, i.RuntimeFiles.SysWOW64
	dev.DeviceNodes, dev.Libraries = i.Linux.DeviceNodes, i.Linux.Libraries
	if i.PCIAddress != "" {
		dev.BusNumber, dev.Address = parsePCIAddress(i.PCIAddress)
	}
	for _, files := range [][]discovery.RuntimeFile{dev.System32, dev.SysWOW64} {
		for n, file := range files {
			files[n].Destination = cmp.Or(file.Destination, winpath.Base(file.Source))
		}
	}
	for n, node := range dev.DeviceNodes {
		dev.DeviceNodes[n].ContainerPath = cmp.Or(node.ContainerPath, node.Path)
	}
	for n, library := range dev.Libraries {
		dev.Libraries[n].Destination = cmp.Or(library.Destination, library.Source)
	}
	return dev
}

// checkDevices returns the errors in the devices of an inventory that its schema does not find.
func checkDevices(devices []discovery.Device) error {
	var found problems
	paths := map[string]string{} // of the values that must be unique
	unique := func(scope, value, path string) {
		key := scope + "\x00" + strings.ToUpper(value)
		if first := paths[key]; first != "" && value != "" {
			found.add(path, "the same as %s", first)
			return
		}
		paths[key] = path
	}
	for i, d := range devices {
		path := fmt.Sprintf("devices[%d]", i)
		unique("instanceID", discovery.NormalizeID(d.InstanceID), path+".instanceID")
		unique("locationPath", d.LocationPath, path+".locationPath")
		unique("uuid", d.UUID, path+".uuid")
		if d.LUID != 0 {
			unique("luid", d.LUID.String(), path+".luid")
		}
		if d.Address != nil {
			unique("pciAddress", fmt.Sprint(*d.BusNumber, *d.Address), path+".pciAddress")
		}
		if inID := pci.VendorOf(d.InstanceID); inID != 0 && inID != d.VendorID {
			found.add(path+".vendorID", "%s is not the vendor in the instance ID, %s", d.VendorID, inID)
		}
		for n, file := range d.System32 {
			unique(path+"system32", winpath.Key(file.Destination), fmt.Sprintf("%s.runtimeFiles.system32[%d]", path, n))
		}
		for n, file := range d.SysWOW64 {
			unique(path+"sysWOW64", winpath.Key(file.Destination), fmt.Sprintf("%s.runtimeFiles.sysWOW64[%d]", path, n))
		}
		for n, node := range d.DeviceNodes {
			unique(path+node.ContainerPath, "linux", fmt.Sprintf("%s.linux.deviceNodes[%d]", path, n))
		}
		for n, library := range d.Libraries {
			unique(path+library.Destination, "linux", fmt.Sprintf("%s.linux.libraries[%d]", path, n))
		}
	}
	return found.err()
}

// parsePCIAddress returns the parts of segment:bus:device.function, all hexadecimal.
func parsePCIAddress(text string) (busNumber, address *uint32) {
	var segment, bus, device, function uint32
	_, _ = fmt.Sscanf(text, "%x:%x:%x.%x", &segment, &bus, &device, &function) // The schema's pattern ensures the form.
	return new(segment<<8 | bus), new(device<<16 | function)
}
