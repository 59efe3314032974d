package config

import (
	"errors"
	"fmt"
	"os"
	"path"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"directx-nri/discovery"
	"directx-nri/discovery/compiled"
	"directx-nri/internal/durable"
	"directx-nri/internal/policy"
	"directx-nri/internal/winpath"
)

// InventoryKind is the kind of an inventory file.
const InventoryKind = "Inventory"

// Limits of an inventory.
const (
	maxInventory  = 4 << 20 // bytes
	maxDevices    = 1024
	maxFiles      = 512   // in one list
	maxInstanceID = 200   // characters, MAX_DEVICE_ID_LEN
	maxText       = 256   // characters
	maxPath       = 4095  // bytes
	maxNUMANode   = 65535 // Windows has a USHORT
)

// inventoryFile is the content of an inventory file. The fields have the meaning of
// those of [discovery.Device].
type inventoryFile struct {
	APIVersion string            `yaml:"apiVersion"`
	Kind       string            `yaml:"kind"`
	Devices    []inventoryDevice `yaml:"devices"`
}

type inventoryDevice struct {
	InstanceID   string `yaml:"instanceID"`
	Description  string `yaml:"description"`
	VendorID     string `yaml:"vendorID"`
	LocationPath string `yaml:"locationPath"`
	LUID         string `yaml:"luid"`
	UUID         string `yaml:"uuid"`
	PCIAddress   string `yaml:"pciAddress"`
	Driver       struct {
		Version   string `yaml:"version"`
		StorePath string `yaml:"storePath"`
	} `yaml:"driver"`
	DedicatedMemory string   `yaml:"dedicatedMemory"`
	NUMANode        *integer `yaml:"numaNode"`
	Integrated      bool     `yaml:"integrated"`
	Detachable      bool     `yaml:"detachable"`
	Display         bool     `yaml:"display"`
	Compute         bool     `yaml:"compute"`
	Health          *health  `yaml:"health"`
	RuntimeFiles    struct {
		System32 []filePair `yaml:"system32"`
		SysWOW64 []filePair `yaml:"sysWOW64"`
	} `yaml:"runtimeFiles"`
	Linux struct {
		DeviceNodes []nodePair `yaml:"deviceNodes"`
		Libraries   []filePair `yaml:"libraries"`
	} `yaml:"linux"`
}

type health struct {
	Reason string `yaml:"reason"`
}

// pair is where a file is on the node and in the container. Without to, both are
// the same.
type pair struct{ from, to string }

// filePair is a pair that is written as a string, or with source and destination.
type filePair pair

// UnmarshalYAML implements [yaml.Unmarshaler].
func (p *filePair) UnmarshalYAML(node *yaml.Node) error {
	return (*pair)(p).unmarshal(node, "source", "destination")
}

// nodePair is a pair that is written as a string, or with path and containerPath.
type nodePair pair

// UnmarshalYAML implements [yaml.Unmarshaler].
func (p *nodePair) UnmarshalYAML(node *yaml.Node) error {
	return (*pair)(p).unmarshal(node, "path", "containerPath")
}

func (p *pair) unmarshal(node *yaml.Node, from, to string) error {
	if node.Kind == yaml.ScalarNode {
		*p = pair{from: node.Value}
		return nil
	}
	var m map[string]string
	err := decodeKnown(node, &m, from, to)
	*p = pair{m[from], m[to]}
	return err
}

// ReadInventory returns the devices of an inventory file that anyone may have
// written, for programs that only print them.
func ReadInventory(path string) ([]discovery.Device, error) {
	data, err := readRegular(path, maxInventory)
	if err != nil {
		return nil, fmt.Errorf("read inventory: %w", err)
	}
	return ParseInventory(path, data)
}

// readRegular reads a regular file; opening a named pipe would block.
func readRegular(path string, limit int64) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	return durable.Read(path, limit+1)
}

// ParseInventory returns the devices of an inventory file in its order. The file's
// name is for errors, which are [KeyErrors].
func ParseInventory(name string, data []byte) ([]discovery.Device, error) {
	d := parseDocument(name, data, maxInventory, InventoryKind)
	var file inventoryFile
	d.decode(&file)
	if len(d.problems) == 0 {
		switch {
		case file.Devices == nil:
			d.fail("", "devices is missing: a node without GPUs has devices: []")
		case len(file.Devices) > maxDevices:
			d.fail("devices", "%d devices: at most %d are allowed", len(file.Devices), maxDevices)
		}
	}
	if err := d.err(); err != nil {
		return nil, err
	}
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
		InstanceID: i.InstanceID, Description: i.Description, LocationPath: i.LocationPath, UUID: i.UUID,
		VendorID:      discovery.PCIVendor(i.InstanceID),
		DriverVersion: i.Driver.Version, DriverStorePath: i.Driver.StorePath,
		Integrated: i.Integrated, Detachable: i.Detachable, SupportsDisplay: i.Display, SupportsCompute: i.Compute,
	}
	// valid checks a value that is set, and claims it if it must be unique.
	valid := func(key, value string, check func() error, claimed func() string) {
		if value != "" && d.check(join(path, key), check()) && claimed != nil {
			seen.claim(d, join(path, key), key, claimed())
		}
	}
	if i.InstanceID == "" {
		d.fail(path, "instanceID is missing")
	}
	valid("instanceID", i.InstanceID, func() error { return checkInstanceID(i.InstanceID) }, func() string { return compiled.Key(i.InstanceID) })
	valid("description", i.Description, func() error { return checkLength(i.Description) }, nil)
	valid("vendorID", i.VendorID, func() error { return i.setVendor(&dev) }, nil)
	valid("locationPath", i.LocationPath, func() error { return checkLocationPath(i.LocationPath) }, func() string { return strings.ToUpper(i.LocationPath) })
	valid("luid", i.LUID, func() (err error) { dev.LUID, err = parseLUID(i.LUID); return err }, func() string { return dev.LUID.String() })
	valid("uuid", i.UUID, func() error { return checkUUID(i.UUID) }, func() string { return strings.ToUpper(i.UUID) })
	valid("pciAddress", i.PCIAddress, func() (err error) { dev.BusNumber, dev.Address, err = parsePCIAddress(i.PCIAddress); return err },
		func() string { return strings.ToUpper(i.PCIAddress) })
	valid("driver.version", i.Driver.Version, func() error { _, err := policy.ParseDriverVersion(i.Driver.Version, 0); return err }, nil)
	valid("driver.storePath", i.Driver.StorePath, func() (err error) { dev.DriverStorePath, err = cleanStorePath(i.Driver.StorePath); return err }, nil)
	valid("dedicatedMemory", i.DedicatedMemory, func() (err error) { dev.DedicatedMemory, err = parseMemory(i.DedicatedMemory); return err }, nil)
	if i.NUMANode != nil {
		node := int(*i.NUMANode)
		if dev.NUMANode = &node; node < 0 || node > maxNUMANode {
			d.fail(path+".numaNode", "%d is out of range: use 0 to %d", node, maxNUMANode)
		}
	}
	if i.Health != nil {
		dev.Health.Reason = i.Health.Reason
		if strings.TrimSpace(i.Health.Reason) == "" {
			d.fail(path+".health", "reason is missing: remove health for a healthy device")
		}
		d.check(path+".health.reason", checkLength(i.Health.Reason))
	}
	dev.System32 = runtimeFileList(d, path+".runtimeFiles.system32", i.RuntimeFiles.System32)
	dev.SysWOW64 = runtimeFileList(d, path+".runtimeFiles.sysWOW64", i.RuntimeFiles.SysWOW64)
	if len(dev.System32)+len(dev.SysWOW64) > 0 && i.Driver.StorePath == "" {
		d.fail(path+".runtimeFiles", "driver.storePath is missing: sources are relative to it")
	}
	taken := unique{} // of both lists, which share the container's file system
	for n, p := range limited(d, path+".linux.deviceNodes", i.Linux.DeviceNodes) {
		host, container := posixPair(d, fmt.Sprintf("%s.linux.deviceNodes[%d]", path, n), pair(p), taken)
		dev.DeviceNodes = append(dev.DeviceNodes, discovery.DeviceNode{Path: host, ContainerPath: container})
	}
	for n, p := range limited(d, path+".linux.libraries", i.Linux.Libraries) {
		host, container := posixPair(d, fmt.Sprintf("%s.linux.libraries[%d]", path, n), pair(p), taken)
		dev.Libraries = append(dev.Libraries, discovery.Library{Source: host, Destination: container})
	}
	return dev
}

func (i inventoryDevice) setVendor(dev *discovery.Device) error {
	id, ok := parsePCIVendor(i.VendorID)
	if !ok {
		return fmt.Errorf("%q is not a PCI vendor ID such as 0x10DE", i.VendorID)
	}
	if named := uint16(dev.VendorID); named != 0 && named != id {
		return fmt.Errorf("0x%04X is not the vendor in the instance ID, 0x%04X", id, named)
	}
	dev.VendorID = discovery.VendorID(id)
	return nil
}

func limited[T any](d *document, path string, list []T) []T {
	if len(list) > maxFiles {
		d.fail(path, "%d entries: at most %d are allowed", len(list), maxFiles)
		return nil
	}
	return list
}

func runtimeFileList(d *document, path string, list []filePair) []discovery.RuntimeFile {
	var files []discovery.RuntimeFile
	taken := unique{}
	for i, p := range limited(d, path, list) {
		item := fmt.Sprintf("%s[%d]", path, i)
		source, err := cleanRuntimeFile(p.from)
		if !d.check(item, err) {
			continue
		}
		file := discovery.RuntimeFile{Source: source, Destination: winpath.Base(source)}
		if p.to != "" {
			if file.Destination, err = cleanRuntimeFile(p.to); !d.check(item+".destination", err) {
				continue
			}
		}
		taken.claim(d, item, "destination", winpath.Key(file.Destination))
		files = append(files, file)
	}
	return files
}

func posixPair(d *document, path string, p pair, taken unique) (host, container string) {
	if p.to == "" {
		p.to = p.from
	}
	if d.check(path, errors.Join(checkPOSIXPath(p.from), checkPOSIXPath(p.to))) {
		taken.claim(d, path, "container path", p.to)
	}
	return p.from, p.to
}

func checkLength(text string) error {
	if n := utf8.RuneCountInString(text); n > maxText {
		return fmt.Errorf("%d characters: at most %d are allowed", n, maxText)
	}
	return nil
}

func checkInstanceID(id string) error {
	switch n := utf8.RuneCountInString(id); {
	case n > maxInstanceID:
		return fmt.Errorf("%d characters: at most %d are allowed", n, maxInstanceID)
	case strings.TrimSpace(id) != id:
		return errors.New("white space at an end")
	case strings.Contains(id, "::"), strings.HasSuffix(id, ":"):
		return errors.New(`"::", or ":" at the end: replica IDs use "::" as their separator`)
	}
	return nil
}

func parseLUID(text string) (discovery.LUID, error) {
	luid, ok := discovery.ParseLUID(text)
	if !ok || luid == 0 {
		return 0, fmt.Errorf("%q is not a LUID: use 0x00000000_0x0000C2F5 or 0xC2F5", text)
	}
	return luid, nil
}

// The argument of PCIROOT and PCI is hexadecimal.
// https://learn.microsoft.com/windows-hardware/drivers/install/devpkey-device-locationpaths
var (
	locationElement = regexp.MustCompile(`^\w+\(\w+\)$`)
	pciElement      = regexp.MustCompile(`^\w+\([0-9A-Fa-f]+\)$`)
)

func checkLocationPath(text string) error {
	for element := range strings.SplitSeq(text, "#") {
		name, _, _ := strings.Cut(element, "(")
		pci := strings.EqualFold(name, "PCI") || strings.EqualFold(name, "PCIROOT")
		if !locationElement.MatchString(element) || pci && !pciElement.MatchString(element) {
			return fmt.Errorf("%q is not an element of a location path such as PCIROOT(0)#PCI(1B00)", element)
		}
	}
	return checkLength(text)
}

var uuidPattern = regexp.MustCompile(`^GPU-[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}$`)

func checkUUID(text string) error {
	if !uuidPattern.MatchString(text) {
		return fmt.Errorf("%q is not the UUID of a GPU such as GPU-8932f937-d72c-4106-c12f-20bd9faed9f6, which nvidia-smi -L prints", text)
	}
	return nil
}

var pciPattern = regexp.MustCompile(`^([0-9A-Fa-f]{4}):([0-9A-Fa-f]{2}):([01][0-9A-Fa-f])\.([0-7])$`)

// parsePCIAddress parses segment:bus:device.function, all hexadecimal.
func parsePCIAddress(text string) (bus, address *uint32, err error) {
	match := pciPattern.FindStringSubmatch(text)
	if match == nil {
		return nil, nil, fmt.Errorf("%q is not a PCI address such as 0000:1B:00.0", text)
	}
	var n [4]uint32
	for i, digits := range match[1:] {
		value, err := strconv.ParseUint(digits, 16, 32)
		if err != nil {
			return nil, nil, err
		}
		n[i] = uint32(value)
	}
	place := []uint32{n[0]<<8 | n[1], n[2]<<16 | n[3]}
	return &place[0], &place[1], nil
}

// cleanStorePath checks and cleans the driver store path, a directory on a local drive.
func cleanStorePath(p string) (string, error) {
	clean := winpath.Clean(p)
	root, below := clean[:min(len(clean), 3)], clean[min(len(clean), 3):]
	if len(p) > maxPath || !winpath.IsAbs(root) || !strings.HasSuffix(root, `:\`) || !winpath.IsLocal(below) {
		return "", fmt.Errorf(`%q is not the absolute Windows path of a directory, with its drive`, p)
	}
	return clean, nil
}

func cleanRuntimeFile(p string) (string, error) {
	clean := winpath.Clean(p)
	if len(p) > maxPath || !winpath.IsLocal(p) || clean == "." || endsBadly(clean) {
		return "", fmt.Errorf("%q is not a file below a directory: use a relative Windows path such as nvcuda64.dll", p)
	}
	return clean, nil
}

func checkPOSIXPath(p string) error {
	if len(p) > maxPath || !path.IsAbs(p) || path.Clean(p) != p || p == "/" {
		return fmt.Errorf("%q is not a clean absolute path of a file or directory", p)
	}
	return nil
}
