package config

import (
	"cmp"
	"fmt"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/pci"
	"github.com/directx-nri/directx-nri/internal/winpath"
)

const maxInventory = 4 << 20 // bytes

// Inventory is the content of an inventory file. [discovery.Device] describes the fields.
type Inventory struct {
	APIVersion string            `yaml:"apiVersion" jsonschema:"required,enum=directx.microsoft.com/v1alpha1"`
	Kind       string            `yaml:"kind" jsonschema:"required,enum=Inventory"`
	Devices    []inventoryDevice `yaml:"devices" jsonschema:"required,maxItems=1024"`
}

type inventoryDevice struct {
	InstanceID   string         `yaml:"instanceID" jsonschema:"required,maxLength=200,pattern=^\\S(.*\\S)?$,example=PCI\\VEN_10DE&DEV_1EB8"` // MAX_DEVICE_ID_LEN
	Description  string         `yaml:"description" jsonschema:"maxLength=256"`
	VendorID     pci.Vendor     `yaml:"vendorID" jsonschema:"type=string,format=vendor"`
	LocationPath string         `yaml:"locationPath" jsonschema:"maxLength=256,pattern=^\\w+\\(\\w+\\)(#\\w+\\(\\w+\\))*$,example=PCIROOT(0)#PCI(1B00)"`
	LUID         discovery.LUID `yaml:"luid" jsonschema:"type=string,format=luid"`
	UUID         string         `yaml:"uuid" jsonschema:"pattern=^GPU-[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}$,example=GPU-8932f937-d72c-4106-c12f-20bd9faed9f6 (see nvidia-smi -L)"`
	PCIAddress   string         `yaml:"pciAddress" jsonschema:"pattern=^[0-9A-Fa-f]{4}:[0-9A-Fa-f]{2}:[01][0-9A-Fa-f]\\.[0-7]$,example=0000:1B:00.0"`
	Driver       struct {
		Version   string `yaml:"version" jsonschema:"format=version"`
		StorePath string `yaml:"storePath" jsonschema:"format=storePath"`
	} `yaml:"driver"`
	DedicatedMemory uint64            `yaml:"dedicatedMemory" jsonschema:"type=string,format=memory"`
	NUMANode        *int              `yaml:"numaNode" jsonschema:"minimum=0,maximum=65535"` // Windows has a USHORT
	Integrated      bool              `yaml:"integrated"`
	Detachable      bool              `yaml:"detachable"`
	Display         bool              `yaml:"display"`
	Compute         bool              `yaml:"compute"`
	Health          *discovery.Health `yaml:"health"`
	RuntimeFiles    struct {
		System32 []discovery.RuntimeFile `yaml:"system32" jsonschema:"maxItems=512" jsonschema_extras:"shorthand=true"`
		SysWOW64 []discovery.RuntimeFile `yaml:"sysWOW64" jsonschema:"maxItems=512" jsonschema_extras:"shorthand=true"`
	} `yaml:"runtimeFiles"`
	Linux struct {
		DeviceNodes []discovery.DeviceNode `yaml:"deviceNodes" jsonschema:"maxItems=512" jsonschema_extras:"shorthand=true"`
		Libraries   []discovery.Library    `yaml:"libraries" jsonschema:"maxItems=512" jsonschema_extras:"shorthand=true"`
	} `yaml:"linux"`
}

// IsInventory reports whether the file at path has the kind of an inventory.
func IsInventory(path string) (bool, error) {
	data, err := Compiler{InspectOnly: true}.read(path, maxInventory)
	if err != nil {
		return false, err
	}
	var head struct{ Kind string }
	_ = yaml.Unmarshal(data, &head) // An invalid file is read as a configuration, whose errors are reported.
	return head.Kind == "Inventory", nil
}

// ParseInventory returns the devices of an inventory file in the order of the file. name is the
// file's name for errors, which are [KeyErrors].
func ParseInventory(name string, data []byte) ([]discovery.Device, error) {
	d, err := parse(name, data, maxInventory)
	if err != nil {
		return nil, err
	}
	var file Inventory
	d.decode(&file)
	devices := []discovery.Device{}
	seen := uniqueValues{}
	for i, device := range file.Devices {
		devices = append(devices, device.build(d, fmt.Sprintf("devices[%d]", i), seen))
	}
	if err := d.err(); err != nil {
		return nil, err
	}
	return devices, nil
}

// uniqueValues has the paths of the values that must be unique, by kind and value.
type uniqueValues map[[2]string]string

// add adds a value, or adds an error to d if another path has the value. It ignores "".
func (u uniqueValues) add(d *yamlDocument, path, kind, value string) {
	if value == "" {
		return
	}
	key := [2]string{kind, value}
	if first, taken := u[key]; taken {
		d.errorf(path, "the same as %s: %s must be unique", first, kind)
		return
	}
	u[key] = path
}

// build returns the device at path, and adds errors of keys that depend on each other to d. seen
// has the values of the earlier devices.
func (i inventoryDevice) build(d *yamlDocument, path string, seen uniqueValues) discovery.Device {
	dev := discovery.Device{
		InstanceID: i.InstanceID, Description: i.Description, LocationPath: i.LocationPath, LUID: i.LUID, UUID: i.UUID,
		VendorID: pci.VendorOf(i.InstanceID), DriverVersion: i.Driver.Version, DriverStorePath: i.Driver.StorePath,
		DedicatedMemory: i.DedicatedMemory, NUMANode: i.NUMANode, Health: *cmp.Or(i.Health, new(discovery.Health)),
		Integrated: i.Integrated, Detachable: i.Detachable, SupportsDisplay: i.Display, SupportsCompute: i.Compute,
		System32: i.RuntimeFiles.System32, SysWOW64: i.RuntimeFiles.SysWOW64,
		DeviceNodes: i.Linux.DeviceNodes, Libraries: i.Linux.Libraries,
	}
	if strings.Contains(i.InstanceID, "::") || strings.HasSuffix(i.InstanceID, ":") {
		d.errorf(path+".instanceID", `"::", or ":" at the end: replica IDs use "::" as their separator`)
	}
	if part := notHexadecimal.FindString(i.LocationPath); part != "" {
		d.errorf(path+".locationPath", "%s is not hexadecimal", part)
	}
	if inID := dev.VendorID; i.VendorID != 0 {
		if dev.VendorID = i.VendorID; inID != 0 && inID != dev.VendorID {
			d.errorf(path+".vendorID", "0x%04X is not the vendor in the instance ID, 0x%04X", uint16(i.VendorID), uint16(inID))
		}
	}
	if i.PCIAddress != "" {
		dev.BusNumber, dev.Address = parsePCIAddress(i.PCIAddress)
	}
	luid := ""
	if i.LUID != 0 {
		luid = dev.LUID.String()
	}
	for key, value := range map[string]string{
		"instanceID": discovery.NormalizeID(i.InstanceID), "locationPath": i.LocationPath, "luid": luid, "uuid": i.UUID,
		"pciAddress": i.PCIAddress,
	} {
		seen.add(d, path+"."+key, key, strings.ToUpper(value))
	}
	setDestinations(d, path+".runtimeFiles.system32", dev.System32)
	setDestinations(d, path+".runtimeFiles.sysWOW64", dev.SysWOW64)
	if len(dev.System32)+len(dev.SysWOW64) > 0 && i.Driver.StorePath == "" && !d.hasErrors(path+".driver") {
		d.errorf(path+".runtimeFiles", "driver.storePath is missing: sources are relative to it")
	}
	taken := uniqueValues{} // The paths of both lists are in the container's file system.
	for n := range dev.DeviceNodes {
		node := &dev.DeviceNodes[n]
		node.ContainerPath = cmp.Or(node.ContainerPath, node.Path)
		taken.add(d, fmt.Sprintf("%s.linux.deviceNodes[%d]", path, n), "container path", node.ContainerPath)
	}
	for n := range dev.Libraries {
		library := &dev.Libraries[n]
		library.Destination = cmp.Or(library.Destination, library.Source)
		taken.add(d, fmt.Sprintf("%s.linux.libraries[%d]", path, n), "container path", library.Destination)
	}
	return dev
}

// setDestinations sets the missing names in the container to those of the sources.
func setDestinations(d *yamlDocument, path string, files []discovery.RuntimeFile) {
	taken := uniqueValues{}
	for i := range files {
		if f := &files[i]; f.Source != "" { // Otherwise, it has an error.
			f.Destination = cmp.Or(f.Destination, winpath.Base(f.Source))
			taken.add(d, fmt.Sprintf("%s[%d]", path, i), "destination", winpath.Key(f.Destination))
		}
	}
}

// notHexadecimal finds an argument of PCIROOT or PCI that is not hexadecimal.
// https://learn.microsoft.com/windows-hardware/drivers/install/devpkey-device-locationpaths
var notHexadecimal = regexp.MustCompile(`(?i)\bPCI(ROOT)?\([0-9A-F]*[^0-9A-F)]`)

// parsePCIAddress returns the parts of segment:bus:device.function, all hexadecimal.
func parsePCIAddress(text string) (busNumber, address *uint32) {
	var segment, bus, device, function uint32
	_, _ = fmt.Sscanf(text, "%x:%x:%x.%x", &segment, &bus, &device, &function) // The schema's pattern ensures the form.
	return new(segment<<8 | bus), new(device<<16 | function)
}
