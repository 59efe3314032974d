package config

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"regexp"
	"strconv"
	"strings"

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
	InstanceID   string `yaml:"instanceID" jsonschema:"required,maxLength=200,pattern=^\\S(.*\\S)?$,example=PCI\\VEN_10DE&DEV_1EB8"` // MAX_DEVICE_ID_LEN
	Description  string `yaml:"description" jsonschema:"maxLength=256"`
	VendorID     vendor `yaml:"vendorID"`
	LocationPath string `yaml:"locationPath" jsonschema:"maxLength=256,pattern=^\\w+\\(\\w+\\)(#\\w+\\(\\w+\\))*$,example=PCIROOT(0)#PCI(1B00)"`
	LUID         luid   `yaml:"luid"`
	UUID         string `yaml:"uuid" jsonschema:"pattern=^GPU-[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}$,example=GPU-8932f937-d72c-4106-c12f-20bd9faed9f6 (see nvidia-smi -L)"`
	PCIAddress   string `yaml:"pciAddress" jsonschema:"pattern=^[0-9A-Fa-f]{4}:[0-9A-Fa-f]{2}:[01][0-9A-Fa-f]\\.[0-7]$,example=0000:1B:00.0"`
	Driver       struct {
		Version   driverVersion `yaml:"version"`
		StorePath storePath     `yaml:"storePath"`
	} `yaml:"driver"`
	DedicatedMemory memory  `yaml:"dedicatedMemory"`
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
		DeviceNodes []nodePair `yaml:"deviceNodes" jsonschema:"maxItems=512"`
		Libraries   []filePair `yaml:"libraries" jsonschema:"maxItems=512"`
	} `yaml:"linux"`
}

type health struct {
	Reason string `yaml:"reason" jsonschema:"required,maxLength=256,pattern=\\S,example=driver is not started (code 10)"`
}

// filePair is where a file is on the node and in the container. Without a destination,
// both are the same.
type filePair struct {
	Source      string `yaml:"source" jsonschema:"required"`
	Destination string `yaml:"destination"`
}

func (filePair) shorthand() {}

// nodePair is [filePair] for device nodes.
type nodePair struct {
	Path          string `yaml:"path" jsonschema:"required"`
	ContainerPath string `yaml:"containerPath"`
}

func (nodePair) shorthand() {}

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
	d := parse(path, data, maxInventory)
	if d.root == nil {
		return false, nil // The errors of a configuration say why.
	}
	kind := child(d.root, "kind")
	return kind != nil && kind.Value == inventoryKind, nil
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

// claim adds a problem if another path has the value.
func (u unique) claim(d *document, path, kind, value string) {
	key := [2]string{kind, value}
	if first, taken := u[key]; taken {
		d.fail(path, "the same as %s: %s must be unique", first, kind)
		return
	}
	u[key] = path
}

func (i inventoryDevice) device(d *document, path string, seen unique) discovery.Device {
	dev := discovery.Device{
		InstanceID: i.InstanceID, Description: i.Description, LocationPath: i.LocationPath, LUID: discovery.LUID(i.LUID), UUID: i.UUID,
		VendorID: discovery.PCIVendor(i.InstanceID), DriverVersion: string(i.Driver.Version), DriverStorePath: string(i.Driver.StorePath),
		DedicatedMemory: i.DedicatedMemory.bytes(), NUMANode: i.NUMANode,
		Integrated: i.Integrated, Detachable: i.Detachable, SupportsDisplay: i.Display, SupportsCompute: i.Compute,
	}
	d.check(path+".instanceID", checkInstanceID(i.InstanceID))
	d.check(path+".locationPath", checkLocationPath(i.LocationPath))
	if named := dev.VendorID; i.VendorID != 0 {
		if dev.VendorID = discovery.VendorID(i.VendorID); named != 0 && named != dev.VendorID {
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
		if value != "" {
			seen.claim(d, path+"."+key, key, strings.ToUpper(value))
		}
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
		host, container := posixPair(d, fmt.Sprintf("%s.linux.deviceNodes[%d]", path, n), p.Path, p.ContainerPath, taken)
		dev.DeviceNodes = append(dev.DeviceNodes, discovery.DeviceNode{Path: host, ContainerPath: container})
	}
	for n, p := range i.Linux.Libraries {
		host, container := posixPair(d, fmt.Sprintf("%s.linux.libraries[%d]", path, n), p.Source, p.Destination, taken)
		dev.Libraries = append(dev.Libraries, discovery.Library{Source: host, Destination: container})
	}
	return dev
}

func runtimeFileList(d *document, path string, list []filePair) []discovery.RuntimeFile {
	var files []discovery.RuntimeFile
	taken := unique{}
	for i, p := range list {
		item := fmt.Sprintf("%s[%d]", path, i)
		source, err := cleanRuntimeFile(p.Source)
		destination, destinationErr := winpath.Base(source), error(nil)
		if p.Destination != "" {
			destination, destinationErr = cleanRuntimeFile(p.Destination)
		}
		if d.check(item, err) && d.check(item+".destination", destinationErr) {
			taken.claim(d, item, "destination", winpath.Key(destination))
			files = append(files, discovery.RuntimeFile{Source: source, Destination: destination})
		}
	}
	return files
}

func posixPair(d *document, path, from, to string, taken unique) (host, container string) {
	to = cmp.Or(to, from)
	if d.check(path, errors.Join(checkPOSIXPath(from), checkPOSIXPath(to))) {
		taken.claim(d, path, "container path", to)
	}
	return from, to
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

func cleanRuntimeFile(p string) (string, error) {
	clean := winpath.Clean(p)
	if !winpath.IsLocal(p) || clean == "." || endsBadly(clean) {
		return "", fmt.Errorf("%q is not a file below a directory: use a relative Windows path such as nvcuda64.dll", p)
	}
	return clean, nil
}

func checkPOSIXPath(p string) error {
	if !path.IsAbs(p) || path.Clean(p) != p || p == "/" {
		return fmt.Errorf("%q is not a clean absolute path of a file or directory", p)
	}
	return nil
}
