package inventory

import (
	"strings"
	"unicode/utf8"

	"directx-nri/discovery"
	"directx-nri/internal/winpath"

	"go.yaml.in/yaml/v3"
)

// Parse reads the devices of an inventory file, in the file's order. name
// names the file in errors.
//
// The error is a [Problems] with everything that is wrong; there are no
// devices then. No devices without an error means that the file says so.
func Parse(name string, data []byte) ([]discovery.Device, error) {
	d := &decoder{file: name}
	devices := d.inventory(data)
	if len(d.problems) > 0 {
		d.problems.sort()
		return nil, d.problems
	}
	return devices, nil
}

func (d *decoder) inventory(data []byte) []discovery.Device {
	root, ok := d.document(data)
	if !ok {
		return nil
	}
	// The head first: the rest of a file of another kind or version would only
	// be noise.
	if !root.head() {
		return nil
	}
	file, ok := root.object("apiVersion", "kind", "devices")
	if !ok {
		return nil
	}
	listed, ok := file.require("devices", "write \"devices: []\" for a node without any")
	if !ok {
		return nil
	}
	items, ok := listed.items(maxDevices)
	if !ok {
		return nil
	}
	seen := identities{}
	devices := make([]discovery.Device, 0, len(items))
	for _, item := range items {
		devices = append(devices, item.device(seen))
	}
	return devices
}

// head tells whether the file is an inventory of this version.
func (v value) head() bool {
	probe := value{d: &decoder{file: v.d.file}, node: v.node}
	file, ok := probe.object("apiVersion", "kind", "devices")
	if !ok {
		v.fail("must be a mapping with apiVersion, kind and devices, not %s", v.describe())
		return false
	}
	good := true
	for _, line := range []struct{ key, want string }{{"apiVersion", APIVersion}, {"kind", Kind}} {
		field, found := file.get(line.key)
		switch {
		case !found:
			v.fail("%s is missing; write \"%s: %s\"", line.key, line.key, line.want)
			good = false
		case !field.isString() || field.node.Value != line.want:
			v.d.fail(field.node.Line, line.key, "%s is not known; write %s", field.describe(), line.want)
			good = false
		}
	}
	return good
}

// identities remembers where what must be unique was seen.
type identities map[string]value

// claim reports v when another device has the same key already.
func (ids identities) claim(v value, kind, key string) {
	key = kind + "\n" + key
	if earlier, taken := ids[key]; taken {
		v.fail("is the same as %s in line %d; it must be unique", earlier.path, earlier.node.Line)
		return
	}
	ids[key] = v
}

func (v value) device(seen identities) (dev discovery.Device) {
	o, ok := v.object("instanceID", "description", "vendorID", "locationPath", "luid", "driver", "dedicatedMemory", "numaNode",
		"integrated", "detachable", "display", "compute", "health", "runtimeFiles", "linux")
	if !ok {
		return dev
	}
	if f, ok := o.require("instanceID", "every device needs one, such as 'PCI\\VEN_10DE&DEV_1EB8&SUBSYS_12A210DE&REV_A1\\4&1CFCA9AB&0&00D8'"); ok {
		if dev.InstanceID, ok = f.name(); ok && f.obeys(checkInstanceID(dev.InstanceID)) {
			seen.claim(f, "instanceID", fold(dev.InstanceID))
		}
	}
	if f, ok := o.get("description"); ok {
		if dev.Description, ok = f.str(); ok {
			f.atMost(maxText)
		}
	}
	dev.VendorID = o.vendor(dev.InstanceID)
	if f, ok := o.get("locationPath"); ok {
		if dev.LocationPath, ok = f.name(); ok && f.obeys(checkLocationPath(dev.LocationPath)) {
			seen.claim(f, "locationPath", fold(dev.LocationPath))
		}
	}
	if f, ok := o.get("luid"); ok {
		dev.LUID, ok = read(f, value.literal, parseLUID)
		if ok {
			seen.claim(f, "luid", dev.LUID.String())
		}
	}
	if f, ok := o.get("driver"); ok {
		dev.DriverVersion, dev.DriverStorePath = f.driver()
	}
	if f, ok := o.get("dedicatedMemory"); ok {
		dev.DedicatedMemory, _ = read(f, value.literal, parseMemory)
	}
	if f, ok := o.get("numaNode"); ok {
		if node, ok := read(f, value.number, parseNUMANode); ok {
			dev.NUMANode = &node
		}
	}
	dev.Integrated = o.flag("integrated")
	dev.Detachable = o.flag("detachable")
	dev.SupportsDisplay = o.flag("display")
	dev.SupportsCompute = o.flag("compute")
	if f, ok := o.get("health"); ok {
		dev.Health.Reason = f.reason()
	}
	if f, ok := o.get("runtimeFiles"); ok {
		dev.System32, dev.SysWOW64 = f.runtimeFiles()
		driver, ok := o.get("driver")
		hasStore := ok && driver.has("storePath")
		if len(dev.System32)+len(dev.SysWOW64) > 0 && !hasStore {
			f.fail("needs driver.storePath, the folder that the sources are relative to; add it")
		}
	}
	if f, ok := o.get("linux"); ok {
		dev.DeviceNodes, dev.Libraries = f.linux()
	}
	return dev
}

// obeys reports err, if any, as v's problem.
func (v value) obeys(err error) bool {
	if err != nil {
		v.fail("%v", err)
	}
	return err == nil
}

// atMost reports a text that is too long.
func (v value) atMost(limit int) {
	if n := utf8.RuneCountInString(v.node.Value); n > limit {
		v.fail("has %d characters; at most %d are allowed", n, limit)
	}
}

// read takes a scalar's text and gives it its meaning.
func read[T any](v value, text func(value) (string, bool), parse func(string) (T, error)) (T, bool) {
	var zero T
	s, ok := text(v)
	if !ok {
		return zero, false
	}
	result, err := parse(s)
	if !v.obeys(err) {
		return zero, false
	}
	return result, true
}

// has tells whether v is a mapping that has the key.
func (v value) has(key string) bool {
	for i := 0; i+1 < len(v.node.Content); i += 2 {
		if v.node.Content[i].Value == key {
			return true
		}
	}
	return false
}

// flag reads a boolean that is false when it is not there.
func (o object) flag(key string) bool {
	f, ok := o.get(key)
	return ok && f.boolean()
}

func (o object) vendor(instanceID string) discovery.VendorID {
	named := discovery.PCIVendor(instanceID)
	f, ok := o.get("vendorID")
	if !ok {
		return named
	}
	id, ok := read(f, value.number, parseVendorID)
	if ok && named != 0 && id != named {
		f.fail("0x%04X differs from the vendor in the instance ID, 0x%04X; write that or leave the key out", uint16(id), uint16(named))
	}
	return id
}

func (v value) driver() (version, storePath string) {
	o, ok := v.object("version", "storePath")
	if !ok {
		return "", ""
	}
	if f, ok := o.get("version"); ok {
		if version, ok = f.literal(); ok {
			f.obeys(checkVersion(version))
		}
	}
	if f, ok := o.get("storePath"); ok {
		storePath, _ = read(f, value.name, cleanStorePath)
	}
	return version, storePath
}

func (v value) reason() string {
	o, ok := v.object("reason")
	if !ok {
		return ""
	}
	f, ok := o.require("reason", "say what is wrong with the device, or leave health out when nothing is")
	if !ok {
		return ""
	}
	reason, ok := f.str()
	switch {
	case ok && strings.TrimSpace(reason) == "":
		f.fail("is empty; say what is wrong with the device, or leave health out when nothing is")
	case ok:
		f.atMost(maxText)
	}
	return reason
}

func (v value) runtimeFiles() (system32, sysWOW64 []discovery.RuntimeFile) {
	o, ok := v.object("system32", "sysWOW64")
	if !ok {
		return nil, nil
	}
	if f, ok := o.get("system32"); ok {
		system32 = f.runtimeFileList()
	}
	if f, ok := o.get("sysWOW64"); ok {
		sysWOW64 = f.runtimeFileList()
	}
	return system32, sysWOW64
}

func (v value) runtimeFileList() []discovery.RuntimeFile {
	items, _ := v.items(maxFiles)
	seen := identities{}
	var files []discovery.RuntimeFile
	for _, item := range items {
		entry, ok := item.mount("source", "destination")
		if !ok {
			continue
		}
		var file discovery.RuntimeFile
		if file.Source, ok = read(entry.from, value.name, cleanRuntimeFile); !ok {
			continue
		}
		if entry.sameName {
			file.Destination = winpath.Base(file.Source)
		} else if file.Destination, ok = read(entry.to, value.name, cleanRuntimeFile); !ok {
			continue
		}
		seen.claim(entry.to, "destination", winpath.Key(file.Destination))
		files = append(files, file)
	}
	return files
}

func (v value) linux() (nodes []discovery.DeviceNode, libraries []discovery.Library) {
	o, ok := v.object("deviceNodes", "libraries")
	if !ok {
		return nil, nil
	}
	seen := identities{} // of both lists: they share the container's folders
	if f, ok := o.get("deviceNodes"); ok {
		f.hostPaths(seen, "path", "containerPath", func(host, container string) {
			nodes = append(nodes, discovery.DeviceNode{Path: host, ContainerPath: container})
		})
	}
	if f, ok := o.get("libraries"); ok {
		f.hostPaths(seen, "source", "destination", func(host, container string) {
			libraries = append(libraries, discovery.Library{Source: host, Destination: container})
		})
	}
	return nodes, libraries
}

// hostPaths reads a list of paths of the host and their places in the
// container.
func (v value) hostPaths(seen identities, from, to string, add func(host, container string)) {
	items, _ := v.items(maxFiles)
	for _, item := range items {
		entry, ok := item.mount(from, to)
		if !ok {
			continue
		}
		host, ok := entry.from.name()
		if !ok || !entry.from.obeys(checkPOSIXPath(host)) {
			continue
		}
		container := host
		if !entry.sameName {
			if container, ok = entry.to.name(); !ok || !entry.to.obeys(checkPOSIXPath(container)) {
				continue
			}
		}
		seen.claim(entry.to, "path", container)
		add(host, container)
	}
}

// mount is an entry of a list of files: where a file is and where the
// container sees it.
type mount struct {
	from, to value
	sameName bool // to was not said and stands for from
}

// mount reads an entry that is either one string or a mapping of two, of which
// the second may be left out.
func (v value) mount(from, to string) (m mount, ok bool) {
	if v.isString() {
		return mount{from: v, to: v, sameName: true}, true
	}
	if v.node.Kind != yaml.MappingNode {
		v.fail("must be a string or a mapping with %s and %s, not %s", from, to, v.describe())
		return mount{}, false
	}
	o, ok := v.object(from, to)
	if !ok {
		return mount{}, false
	}
	if m.from, ok = o.require(from, "write {"+from+": …, "+to+": …}"); !ok {
		return mount{}, false
	}
	if m.to, ok = o.get(to); !ok {
		m.to, m.sameName = m.from, true
	}
	return m, true
}
