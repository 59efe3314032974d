package win32

import (
	"bytes"
	"fmt"
)

// NVMLError is the error of a call of NVIDIA's management library.
// https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceEnumvs.html
type NVMLError uint32

func (e NVMLError) Error() string { return fmt.Sprintf("NVML error %d", uint32(e)) }

// nvmlError returns nil for NVML_SUCCESS.
func nvmlError(result uint32) error {
	if result == 0 {
		return nil
	}
	return NVMLError(result)
}

// NVMLBusID returns a place on the PCI bus in NVML's notation: 00000000:1B:00.0.
func NVMLBusID(segment, bus, device, function uint32) string {
	return fmt.Sprintf("%08X:%02X:%02X.%X", segment, bus, device, function)
}

// nvmlUUIDSize is NVML_DEVICE_UUID_V2_BUFFER_SIZE.
const nvmlUUIDSize = 96

// cString returns the text in buffer up to its NUL or its end.
func cString(buffer []byte) string {
	text, _, _ := bytes.Cut(buffer, []byte{0})
	return string(text)
}
