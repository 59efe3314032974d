package win32

import (
	"errors"
	"fmt"

	"golang.org/x/sys/windows"
)

// NVMLUUIDs returns the UUIDs of the NVIDIA GPUs at the given PCI addresses, such
// as 00000000:1B:00.0, by address. The error is about those that are missing; without NVIDIA's driver it
// matches [errors.ErrUnsupported].
//
// The driver can take seconds, and a call cannot be interrupted.
func NVMLUUIDs(busIDs []string) (uuids map[string]string, err error) {
	for _, proc := range []*windows.LazyProc{procnvmlInit_v2, procnvmlShutdown, procnvmlDeviceGetHandleByPciBusId_v2, procnvmlDeviceGetUUID} {
		if err := available(proc); err != nil {
			return nil, err
		}
	}
	if err := nvmlError(nvmlInit()); err != nil {
		return nil, fmt.Errorf("nvmlInit: %w", err)
	}
	defer func() {
		if failed := nvmlError(nvmlShutdown()); failed != nil {
			err = errors.Join(err, fmt.Errorf("nvmlShutdown: %w", failed))
		}
	}()
	uuids = map[string]string{}
	var failed []error
	for _, busID := range busIDs {
		uuid, err := nvmlUUID(busID)
		if err != nil {
			failed = append(failed, fmt.Errorf("read the UUID of GPU %s: %w", busID, err))
			continue
		}
		uuids[busID] = uuid
	}
	return uuids, errors.Join(failed...)
}

func nvmlUUID(busID string) (string, error) {
	address, err := windows.BytePtrFromString(busID)
	if err != nil {
		return "", err
	}
	var device uintptr
	if err := nvmlError(nvmlDeviceByBusID(address, &device)); err != nil {
		return "", err
	}
	var buffer [96]byte // NVML_DEVICE_UUID_V2_BUFFER_SIZE
	if err := nvmlError(nvmlDeviceUUID(device, &buffer[0], uint32(len(buffer)))); err != nil {
		return "", err
	}
	return windows.ByteSliceToString(buffer[:]), nil
}

// nvmlError returns nil for NVML_SUCCESS.
func nvmlError(result uint32) error {
	if result == 0 {
		return nil
	}
	return fmt.Errorf("NVML error %d", result)
}
