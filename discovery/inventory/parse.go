package inventory

import (
	"fmt"
	"strings"

	"directx-nri/discovery"
	"directx-nri/internal/quantity"
	"directx-nri/internal/strictyaml"
	"directx-nri/internal/winpath"
)

// Parse reads the devices of an inventory file, in the file's order. name
// names the file in errors.
//
// The error is a [Problems] with everything that is wrong; there are no
// devices then. No devices without an error means that the file says so.
func Parse(name string, data []byte) ([]discovery.Device, error) {
	r := strictyaml.NewReader(strictyaml.Options{
		Name: name, MaxBytes: maxFileSize, MaxValues: maxValues,
		Empty:  `a node without devices is written with apiVersion, kind and "devices: []"`,
		Second: "put all devices into one",
	})
	devices := parse(r, data)
	if err := r.Err(); err != nil {
		return nil, err
	}
	return devices, nil
}

func parse(r *strictyaml.Reader, data []byte) []discovery.Device {
	root, ok := r.Document(data)
	if !ok {
		return nil
	}
	// The head first: the rest of a file of another kind or version would only
	// be noise.
	if !root.Head(APIVersion, Kind, "apiVersion", "kind", "devices") {
		return nil
	}
	file, ok := root.Object("apiVersion", "kind", "devices")
	if !ok {
		return nil
	}
	listed, ok := file.Require("devices", "write \"devices: []\" for a node without any")
	if !ok {
		return nil
	}
	items, ok := listed.Items(maxDevices)
	if !ok {
		return nil
	}
	seen := strictyaml.Unique{}
	devices := make([]discovery.Device, 0, len(items))
	for _, item := range items {
		devices = append(devices, readDevice(item, seen))
	}
	return devices
}

func readDevice(v strictyaml.Value, seen strictyaml.Unique) (dev discovery.Device) {
	o, ok := v.Object("instanceID", "description", "vendorID", "locationPath", "luid", "uuid", "pciAddress", "driver", "dedicatedMemory", "numaNode",
		"integrated", "detachable", "display", "compute", "health", "runtimeFiles", "linux")
	if !ok {
		return dev
	}
	if f, ok := o.Require("instanceID", "every device needs one, such as 'PCI\\VEN_10DE&DEV_1EB8&SUBSYS_12A210DE&REV_A1\\4&1CFCA9AB&0&00D8'"); ok {
		if dev.InstanceID, ok = f.Name(); ok && f.Obeys(checkInstanceID(dev.InstanceID)) {
			seen.Claim(f, "instanceID", fold(dev.InstanceID))
		}
	}
	if f, ok := o.Get("description"); ok {
		if dev.Description, ok = f.String(); ok {
			f.AtMost(maxText)
		}
	}
	dev.VendorID = vendor(o, dev.InstanceID)
	if f, ok := o.Get("locationPath"); ok {
		if dev.LocationPath, ok = f.Name(); ok && f.Obeys(checkLocationPath(dev.LocationPath)) {
			seen.Claim(f, "locationPath", fold(dev.LocationPath))
		}
	}
	if f, ok := o.Get("luid"); ok {
		dev.LUID, ok = strictyaml.Read(f, strictyaml.Value.Literal, parseLUID)
		if ok {
			seen.Claim(f, "luid", dev.LUID.String())
		}
	}
	if f, ok := o.Get("uuid"); ok {
		if dev.UUID, ok = f.Name(); ok && f.Obeys(checkUUID(dev.UUID)) {
			seen.Claim(f, "uuid", fold(dev.UUID))
		}
	}
	if f, ok := o.Get("pciAddress"); ok {
		if place, ok := strictyaml.Read(f, strictyaml.Value.String, parsePCIAddress); ok {
			dev.BusNumber, dev.Address = &place.bus, &place.address
			seen.Claim(f, "pciAddress", fmt.Sprintf("%X %X", place.bus, place.address))
		}
	}
	if f, ok := o.Get("driver"); ok {
		dev.DriverVersion, dev.DriverStorePath = driver(f)
	}
	if f, ok := o.Get("dedicatedMemory"); ok {
		dev.DedicatedMemory, _ = strictyaml.Read(f, strictyaml.Value.Literal, quantity.ParseBytes)
	}
	if f, ok := o.Get("numaNode"); ok {
		if node, ok := strictyaml.Read(f, strictyaml.Value.Number, parseNUMANode); ok {
			dev.NUMANode = &node
		}
	}
	dev.Integrated = flag(o, "integrated")
	dev.Detachable = flag(o, "detachable")
	dev.SupportsDisplay = flag(o, "display")
	dev.SupportsCompute = flag(o, "compute")
	if f, ok := o.Get("health"); ok {
		dev.Health.Reason = reason(f)
	}
	if f, ok := o.Get("runtimeFiles"); ok {
		dev.System32, dev.SysWOW64 = runtimeFiles(f)
		driver, ok := o.Get("driver")
		hasStore := ok && driver.Has("storePath")
		if len(dev.System32)+len(dev.SysWOW64) > 0 && !hasStore {
			f.Fail("needs driver.storePath, the folder that the sources are relative to; add it")
		}
	}
	if f, ok := o.Get("linux"); ok {
		dev.DeviceNodes, dev.Libraries = linux(f)
	}
	return dev
}

// flag reads a boolean that is false when it is not there.
func flag(o strictyaml.Object, key string) bool {
	f, ok := o.Get(key)
	if !ok {
		return false
	}
	is, _ := f.Bool()
	return is
}

func vendor(o strictyaml.Object, instanceID string) discovery.VendorID {
	named := discovery.PCIVendor(instanceID)
	f, ok := o.Get("vendorID")
	if !ok {
		return named
	}
	id, ok := strictyaml.Read(f, strictyaml.Value.Literal, parseVendorID)
	if ok && named != 0 && id != named {
		f.Fail("0x%04X differs from the vendor in the instance ID, 0x%04X; write that or leave the key out", uint16(id), uint16(named))
	}
	return id
}

func driver(v strictyaml.Value) (version, storePath string) {
	o, ok := v.Object("version", "storePath")
	if !ok {
		return "", ""
	}
	if f, ok := o.Get("version"); ok {
		if version, ok = f.Literal(); ok {
			f.Obeys(checkVersion(version))
		}
	}
	if f, ok := o.Get("storePath"); ok {
		storePath, _ = strictyaml.Read(f, strictyaml.Value.Name, cleanStorePath)
	}
	return version, storePath
}

func reason(v strictyaml.Value) string {
	o, ok := v.Object("reason")
	if !ok {
		return ""
	}
	f, ok := o.Require("reason", "say what is wrong with the device, or leave health out when nothing is")
	if !ok {
		return ""
	}
	reason, ok := f.String()
	switch {
	case ok && strings.TrimSpace(reason) == "":
		f.Fail("is empty; say what is wrong with the device, or leave health out when nothing is")
	case ok:
		f.AtMost(maxText)
	}
	return reason
}

func runtimeFiles(v strictyaml.Value) (system32, sysWOW64 []discovery.RuntimeFile) {
	o, ok := v.Object("system32", "sysWOW64")
	if !ok {
		return nil, nil
	}
	if f, ok := o.Get("system32"); ok {
		system32 = runtimeFileList(f)
	}
	if f, ok := o.Get("sysWOW64"); ok {
		sysWOW64 = runtimeFileList(f)
	}
	return system32, sysWOW64
}

func runtimeFileList(v strictyaml.Value) []discovery.RuntimeFile {
	items, _ := v.Items(maxFiles)
	seen := strictyaml.Unique{}
	var files []discovery.RuntimeFile
	for _, item := range items {
		entry, ok := readMount(item, "source", "destination")
		if !ok {
			continue
		}
		var file discovery.RuntimeFile
		if file.Source, ok = strictyaml.Read(entry.from, strictyaml.Value.Name, cleanRuntimeFile); !ok {
			continue
		}
		if entry.sameName {
			file.Destination = winpath.Base(file.Source)
		} else if file.Destination, ok = strictyaml.Read(entry.to, strictyaml.Value.Name, cleanRuntimeFile); !ok {
			continue
		}
		seen.Claim(entry.to, "destination", winpath.Key(file.Destination))
		files = append(files, file)
	}
	return files
}

func linux(v strictyaml.Value) (nodes []discovery.DeviceNode, libraries []discovery.Library) {
	o, ok := v.Object("deviceNodes", "libraries")
	if !ok {
		return nil, nil
	}
	seen := strictyaml.Unique{} // of both lists: they share the container's folders
	if f, ok := o.Get("deviceNodes"); ok {
		hostPaths(f, seen, "path", "containerPath", func(host, container string) {
			nodes = append(nodes, discovery.DeviceNode{Path: host, ContainerPath: container})
		})
	}
	if f, ok := o.Get("libraries"); ok {
		hostPaths(f, seen, "source", "destination", func(host, container string) {
			libraries = append(libraries, discovery.Library{Source: host, Destination: container})
		})
	}
	return nodes, libraries
}

// hostPaths reads a list of paths of the host and their places in the
// container.
func hostPaths(v strictyaml.Value, seen strictyaml.Unique, from, to string, add func(host, container string)) {
	items, _ := v.Items(maxFiles)
	for _, item := range items {
		entry, ok := readMount(item, from, to)
		if !ok {
			continue
		}
		host, ok := entry.from.Name()
		if !ok || !entry.from.Obeys(checkPOSIXPath(host)) {
			continue
		}
		container := host
		if !entry.sameName {
			if container, ok = entry.to.Name(); !ok || !entry.to.Obeys(checkPOSIXPath(container)) {
				continue
			}
		}
		seen.Claim(entry.to, "path", container)
		add(host, container)
	}
}

// mount is an entry of a list of files: where a file is and where the
// container sees it.
type mount struct {
	from, to strictyaml.Value
	sameName bool // to was not said and stands for from
}

// mount reads an entry that is either one string or a mapping of two, of which
// the second may be left out.
func readMount(v strictyaml.Value, from, to string) (m mount, ok bool) {
	if v.IsString() {
		return mount{from: v, to: v, sameName: true}, true
	}
	if !v.IsMapping() {
		v.Fail("must be a string or a mapping with %s and %s, not %s", from, to, v.Describe())
		return mount{}, false
	}
	o, ok := v.Object(from, to)
	if !ok {
		return mount{}, false
	}
	if m.from, ok = o.Require(from, "write {"+from+": …, "+to+": …}"); !ok {
		return mount{}, false
	}
	if m.to, ok = o.Get(to); !ok {
		m.to, m.sameName = m.from, true
	}
	return m, true
}
