//go:build linux

package dxg

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"unicode/utf16"
	"unsafe"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/internal/pci"
)

// adapterProperties is what an adapter reports. Unknown values are zero.
type adapterProperties struct {
	luid discovery.LUID
	// instanceID is the ID that the adapter has as long as this program runs, "" for a new one.
	instanceID      string
	typeBits        uint32
	ids             deviceIDs
	address         adapterAddress
	registry        registryInfo
	memory, version uint64
	// storePath is the driver store path in Windows' spelling, and storeErr why it is unknown.
	storePath string
	storeErr  error
	// failure is why the adapter does not work, nil if it does.
	failure error
}

// adapterQuery queries one adapter.
type adapterQuery struct {
	driver driver
	handle uint32
	// refusal is the error of the last query that was refused.
	refusal error
	// failure is why the adapter is lost. Further queries fail at once.
	failure error
}

// errEmpty reports that an adapter answers only zeros. With an old host, the kernel drops the
// host's status, so that a refused query looks the same.
// https://github.com/microsoft/WSL2-Linux-Kernel/blob/linux-msft-wsl-6.6.y/drivers/hv/dxgkrnl/dxgvmbus.c
var errEmpty = errors.New("its answers are empty")

// run runs a query, and reports whether data has an answer. data may contain the input of the query.
func (q *adapterQuery) run(kind uint32, data unsafe.Pointer, size int) bool {
	if q.failure != nil {
		return false
	}
	request := &queryAdapterInfo{handle: q.handle, kind: kind, data: data, size: uint32(size)}
	err := call(q.driver, ioctlQueryAdapterInfo, request, data)
	switch {
	case err == nil:
		return true
	case isDeviceLost(err):
		q.failure = err
	default:
		q.refusal = err
	}
	return false
}

// readAnswer returns the answer to a query whose answer has a fixed size, the zero value if there is
// none.
func readAnswer[T any](q *adapterQuery, kind uint32) T {
	var answer, none T
	if !q.run(kind, unsafe.Pointer(&answer), int(unsafe.Sizeof(answer))) {
		return none
	}
	return answer
}

// readType returns the adapter's type, 0 if it is unknown: the driver sets typeParavirtualized
// in every answer.
func readType(q *adapterQuery) uint32 {
	bits := readAnswer[uint32](q, queryType)
	if bits == typeParavirtualized {
		return 0
	}
	return bits
}

// readProperties returns all properties of an open adapter.
func readProperties(d driver, adapter adapterInfo) adapterProperties {
	q := &adapterQuery{driver: d, handle: adapter.handle}
	a := adapterProperties{luid: adapter.luid.value()}
	a.typeBits = readType(q)
	a.ids = readAnswer[deviceIDs](q, queryDeviceIDs)
	a.address = readAnswer[adapterAddress](q, queryAddress)
	a.registry = readAnswer[registryInfo](q, queryRegistryInfo)
	a.memory = readAnswer[segmentSize](q, querySegmentSize).dedicatedVideo
	a.version = readAnswer[uint64](q, queryUserModeVersion)
	isEmpty := a == adapterProperties{luid: a.luid}
	a.storePath, a.storeErr = queryStorePath(q)
	a.failure = q.failure
	if isEmpty && a.storeErr != nil {
		a.failure = cmp.Or(a.failure, q.refusal, errEmpty)
	}
	return a
}

// checkAdapter returns why an adapter that answered before does not work now, nil if it works.
func checkAdapter(d driver, adapter adapterInfo, before adapterProperties) error {
	q := &adapterQuery{driver: d, handle: adapter.handle}
	if readType(q) == 0 && before.typeBits != 0 {
		return cmp.Or(q.failure, q.refusal, errEmpty)
	}
	return q.failure
}

// queryStorePath returns the driver store path.
func queryStorePath(q *adapterQuery) (string, error) {
	query := storePathQuery{registryQuery: registryQuery{kind: registryDriverStorePath}}
	if !q.run(queryRegistry, unsafe.Pointer(&query), int(unsafe.Sizeof(query))) {
		return "", cmp.Or(q.failure, q.refusal)
	}
	size, room := query.outputSize, uint32(unsafe.Sizeof(query.output))
	if query.status != registrySuccess || size == 0 || size > room {
		return "", fmt.Errorf("the driver returns status %d and %d bytes in a buffer of %d", query.status, size, room)
	}
	return decodeUTF16(query.output[:size/2]), nil
}

// decodeUTF16 returns the string before the first NUL, in one line.
func decodeUTF16(units []uint16) string {
	text, _, _ := strings.Cut(string(utf16.Decode(units)), "\x00")
	return strings.TrimSpace(errlog.OneLine(text))
}

// driverPackage returns the name of the driver package in a driver store path such as
// `\SystemRoot\System32\DriverStore\FileRepository\nv_dispi.inf_amd64_1f2e`, "" if there
// is none. WSL shares the packages below /usr/lib/wsl/drivers, and Microsoft's user mode
// library maps the paths so.
// https://github.com/microsoft/libdxg/blob/main/src/d3dkmt-wsl.cpp
func driverPackage(storePath string) string {
	const repository = "/filerepository/"
	storePath = strings.ReplaceAll(storePath, `\`, "/")
	i := strings.LastIndex(strings.ToLower(storePath), repository)
	if i < 0 || i+len(repository) > len(storePath) { // ToLower can change the length.
		return ""
	}
	name, _, _ := strings.Cut(storePath[i+len(repository):], "/")
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
	if strings.HasPrefix(name, ".") || strings.Trim(name, letters+"._-") != "" {
		return ""
	}
	return name
}

// Vendor IDs of adapters that are not on PCI are four characters.
const qualcommACPI = 'Q' | 'C'<<8 | 'O'<<16 | 'M'<<24

// basicRender is the PCI device ID of Microsoft Basic Render Driver.
const basicRender = 0x8C

// unknownModel is in the instance IDs of adapters without a known model.
const unknownModel = `DXG`

// model returns the part of the instance ID that is the same for all adapters of a model.
func (a adapterProperties) model() string {
	if a.ids.vendor == 0 {
		return unknownModel
	}
	if a.ids.vendor > 0xFFFF {
		return fmt.Sprintf(`ACPI\VEN_%08X&DEV_%04X`, a.ids.vendor, a.ids.device)
	}
	subsystem := a.ids.subSystem<<16 | a.ids.subVendor&0xFFFF
	if a.ids.subSystem > 0xFFFF {
		subsystem = a.ids.subSystem
	}
	return fmt.Sprintf(`PCI\VEN_%04X&DEV_%04X&SUBSYS_%08X&REV_%02X`, a.ids.vendor, a.ids.device, subsystem, a.ids.revision)
}

// pciAddress returns the adapter's address on the host's PCI bus, "" if it is unknown. Address
// 0:0.0 is the host bridge's.
func (a adapterProperties) pciAddress() string {
	if a.address == (adapterAddress{}) || a.address.bus > 0xFFFFFF || a.address.device > 31 || a.address.function > 7 {
		return ""
	}
	return fmt.Sprintf("%02X.%02X.%X", a.address.bus, a.address.device, a.address.function)
}

// newDevice returns the device of the adapter.
func (a adapterProperties) newDevice(files libraries) discovery.Device {
	d := discovery.Device{
		InstanceID: a.instanceID, LUID: a.luid, Description: decodeUTF16(a.registry.adapter[:]), DedicatedMemory: a.memory,
	}
	vendor := a.ids.vendor
	switch {
	case vendor <= 0xFFFF:
		d.VendorID = pci.Vendor(vendor)
	case vendor == qualcommACPI:
		d.VendorID = pci.VendorQualcomm
	}
	d.Software = d.VendorID == pci.VendorMicrosoft && a.ids.device == basicRender
	if a.pciAddress() != "" {
		d.BusNumber, d.Address = new(a.address.bus), new(a.address.device<<16|a.address.function)
	}
	if v := a.version; v != 0 {
		d.DriverVersion = fmt.Sprintf("%d.%d.%d.%d", v>>48, v>>32&0xFFFF, v>>16&0xFFFF, v&0xFFFF)
	}
	bits := a.typeBits
	if bits == 0 && a.failure == nil {
		bits = typeRender
		d.Notes = append(d.Notes, "its type is unknown: a display GPU is assumed")
	}
	d.Software = d.Software || bits&typeSoftware != 0
	d.Integrated, d.Detachable = bits&typeHybridIntegrated != 0, bits&typeDetachable != 0
	d.SupportsDisplay = bits&typeRender != 0 && bits&typeComputeOnly == 0
	d.SupportsCompute = bits&(typeRender|typeComputeOnly) != 0
	if a.failure != nil {
		d.Health = discovery.Health{Reason: "the driver does not answer: " + errnoText(a.failure)}
	}
	addFiles(&d, files, a)
	return d
}
