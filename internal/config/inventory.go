package config

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/winpath"
)

// inventoryKind is the kind of an inventory file.
const inventoryKind = "Inventory"

const maxInventory = 4 << 20 // bytes

// Inventory is the content of an inventory file. The fields have the meaning of those
// of [discovery.Device].
type Inventory struct {
	APIVersion string            `yaml:"apiVersion" jsonschema:"required,enum=directx.microsoft.com/v1alpha1"`
	Kind       string            `yaml:"kind" jsonschema:"required,enum=Inventory"`
	Devices    []inventoryDevice `yaml:"devices" jsonschema:"required,maxItems=1024"`
}

type inventoryDevice struct {
	InstanceID   string             `yaml:"instanceID" jsonschema:"required,maxLength=200,pattern=^\\S(.*\\S)?$,example=PCI\\VEN_10DE&DEV_1EB8"` // MAX_DEVICE_ID_LEN
	Description  string             `yaml:"description" jsonschema:"maxLength=256"`
	VendorID     discovery.VendorID `yaml:"vendorID" jsonschema:"type=string,format=vendor"`
	LocationPath string             `yaml:"locationPath" jsonschema:"maxLength=256,pattern=^\\w+\\(\\w+\\)(#\\w+\\(\\w+\\))*$,example=PCIROOT(0)#PCI(1B00)"`
	LUID         discovery.LUID     `yaml:"luid" jsonschema:"type=string,format=luid"`
	UUID         string             `yaml:"uuid" jsonschema:"pattern=^GPU-[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}$,example=GPU-8932f937-d72c-4106-c12f-20bd9faed9f6 (see nvidia-smi -L)"`
	PCIAddress   string             `yaml:"pciAddress" jsonschema:"pattern=^[0-9A-Fa-f]{4}:[0-9A-Fa-f]{2}:[01][0-9A-Fa-f]\\.[0-7]$,example=0000:1B:00.0"`
	Driver       struct {
		Version   string `yaml:"version" jsonschema:"format=version"`
		StorePath string `yaml:"storePath" jsonschema:"format=storePath"`
	} `yaml:"driver"`
	DedicatedMemory uint64  `yaml:"dedicatedMemory" jsonschema:"type=string,format=memory"`
	NUMANode        *int    `yaml:"numaNode" jsonschema:"minimum=0,maximum=65535"` // Windows has a USHORT
	Integrated      bool    `yaml:"integrated"`
	Detachable      bool    `yaml:"detachable"`
	Display         bool    `yaml:"display"`
	Compute         bool    `yaml:"compute"`
	Health          *health `yaml:"health"`
	RuntimeFiles    struct {
		System32 []filePair `yaml:"system32" jsonschema:"maxItems=512"`
		SysWOW64 []filePair `yaml:"sysWOW64" jsonschema:"maxItems=512"`
	} `yaml:"runtimeFiles"`
	Linux struct {
		DeviceNodes []nodePair    `yaml:"deviceNodes" jsonschema:"maxItems=512"`
		Libraries   []libraryPair `yaml:"libraries" jsonschema:"maxItems=512"`
	} `yaml:"linux"`
}

type health struct {
	Reason string `yaml:"reason" jsonschema:"required,maxLength=256,pattern=\\S,example=driver is not started (code 10)"`
}

// filePair is where a file is below the driver store path, and in the container. Without a
// destination, it has its name there.
type filePair struct {
	Source      string `yaml:"source" jsonschema:"required,format=runtimeFile"`
	Destination string `yaml:"destination" jsonschema:"format=runtimeFile"`
}

// libraryPair is where a file or directory is on a Linux node and in the container. Without a
// destination, both are the same.
type libraryPair struct {
	Source      string `yaml:"source" jsonschema:"required,format=linuxPath"`
	Destination string `yaml:"destination" jsonschema:"format=linuxPath"`
}

// nodePair is [libraryPair] for device nodes.
type nodePair struct {
	Path          string `yaml:"path" jsonschema:"required,format=linuxPath"`
	ContainerPath string `yaml:"containerPath" jsonschema:"format=linuxPath"`
}

// ReadInventory returns the devices of an inventory file.
func (c Compiler) ReadInventory(path string) ([]discovery.Device, error) {
	devices, _, err := c.inventory(path)
	return devices, err
}

// IsInventory reports whether the file at path has the kind of an inventory.
func IsInventory(path string) (bool, error) {
	data, err := Compiler{Inspect: true}.read(path, maxInventory)
	if err != nil {
		return false, err
	}
	var head struct{ Kind string }
	_ = yaml.Unmarshal(data, &head) // The errors of a configuration say why.
	return head.Kind == inventoryKind, nil
}

// ParseInventory returns the devices of an inventory file in its order. The file's
// name is for errors, which are [KeyErrors].
func ParseInventory(name string, data []byte) ([]discovery.Device, error) {
	d := parse(name, data, maxInventory)
	var file Inventory
	d.decode(&file)
	devices := []discovery.Device{}
	seen := unique{}
	for i, device := range file.Devices {
		devices = append(devices, device.device(d, fmt.Sprintf("devices[%d]", i), seen))
	}
	if err := d.err(); err != nil {
		return nil, err
	}
	return devices, nil
}

// unique has the paths of values that must be unique, by kind and value.
type unique map[[2]string]string

// claim adds an error if another path has the value. "" is none.
func (u unique) claim(d *document, path, kind, value string) {
	if value == "" {
		return
	}
	key := [2]string{kind, value}
	if first, taken := u[key]; taken {
		d.fail(path, "the same as %s: %s must be unique", first, kind)
		return
	}
	u[key] = path
}

func (i inventoryDevice) device(d *document, path string, seen unique) discovery.Device {
	dev := discovery.Device{
		InstanceID: i.InstanceID, Description: i.Description, LocationPath: i.LocationPath, LUID: i.LUID, UUID: i.UUID,
		VendorID: discovery.PCIVendor(i.InstanceID), DriverVersion: i.Driver.Version, DriverStorePath: i.Driver.StorePath,
		DedicatedMemory: i.DedicatedMemory, NUMANode: i.NUMANode,
		Integrated: i.Integrated, Detachable: i.Detachable, SupportsDisplay: i.Display, SupportsCompute: i.Compute,
	}
	d.check(path+".instanceID", checkInstanceID(i.InstanceID))
	d.check(path+".locationPath", checkLocationPath(i.LocationPath))
	if named := dev.VendorID; i.VendorID != 0 {
		if dev.VendorID = i.VendorID; named != 0 && named != dev.VendorID {
			d.fail(path+".vendorID", "0x%04X is not the vendor in the instance ID, 0x%04X", uint16(i.VendorID), uint16(named))
		}
	}
	if i.PCIAddress != "" {
		dev.BusNumber, dev.Address = parsePCIAddress(i.PCIAddress)
	}
	id := ""
	if i.LUID != 0 {
		id = dev.LUID.String()
	}
	for key, value := range map[string]string{
		"instanceID": discovery.NormalizeID(i.InstanceID), "locationPath": i.LocationPath, "luid": id, "uuid": i.UUID, "pciAddress": i.PCIAddress,
	} {
		seen.claim(d, path+"."+key, key, strings.ToUpper(value))
	}
	if i.Health != nil {
		dev.Health.Reason = i.Health.Reason
	}
	dev.System32 = runtimeFileList(d, path+".runtimeFiles.system32", i.RuntimeFiles.System32)
	dev.SysWOW64 = runtimeFileList(d, path+".runtimeFiles.sysWOW64", i.RuntimeFiles.SysWOW64)
	if len(dev.System32)+len(dev.SysWOW64) > 0 && i.Driver.StorePath == "" && !d.failedBelow(path+".driver") {
		d.fail(path+".runtimeFiles", "driver.storePath is missing: sources are relative to it")
	}
	taken := unique{} // of both lists, which share the container's file system
	for n, p := range i.Linux.DeviceNodes {
		dev.DeviceNodes = append(dev.DeviceNodes, discovery.DeviceNode{Path: p.Path, ContainerPath: cmp.Or(p.ContainerPath, p.Path)})
		taken.claim(d, fmt.Sprintf("%s.linux.deviceNodes[%d]", path, n), "container path", dev.DeviceNodes[n].ContainerPath)
	}
	for n, p := range i.Linux.Libraries {
		dev.Libraries = append(dev.Libraries, discovery.Library{Source: p.Source, Destination: cmp.Or(p.Destination, p.Source)})
		taken.claim(d, fmt.Sprintf("%s.linux.libraries[%d]", path, n), "container path", dev.Libraries[n].Destination)
	}
	return dev
}

func runtimeFileList(d *document, path string, list []filePair) (files []discovery.RuntimeFile) {
	taken := unique{}
	for i, p := range list {
		if p.Source == "" {
			continue // It has an error.
		}
		destination := cmp.Or(p.Destination, winpath.Base(p.Source))
		taken.claim(d, fmt.Sprintf("%s[%d]", path, i), "destination", winpath.Key(destination))
		files = append(files, discovery.RuntimeFile{Source: p.Source, Destination: destination})
	}
	return files
}

func checkInstanceID(id string) error {
	if strings.Contains(id, "::") || strings.HasSuffix(id, ":") {
		return errors.New(`"::", or ":" at the end: replica IDs use "::" as their separator`)
	}
	return nil
}

// notHexadecimal finds an argument of PCIROOT or PCI that is not hexadecimal.
// https://learn.microsoft.com/windows-hardware/drivers/install/devpkey-device-locationpaths
var notHexadecimal = regexp.MustCompile(`(?i)\bPCI(ROOT)?\([0-9A-F]*[^0-9A-F)]`)

func checkLocationPath(text string) error {
	if part := notHexadecimal.FindString(text); part != "" {
		return fmt.Errorf("%s is not hexadecimal", part)
	}
	return nil
}

// parsePCIAddress returns the parts of segment:bus:device.function, all hexadecimal.
func parsePCIAddress(text string) (bus, address *uint32) {
	part := func(i, j int) uint32 {
		n, _ := strconv.ParseUint(text[i:j], 16, 16) // The schema's pattern ensures the digits.
		return uint32(n)
	}
	return new(part(0, 4)<<8 | part(5, 7)), new(part(8, 10)<<16 | part(11, 12))
}
