package win32

import (
	"errors"
	"fmt"

	"golang.org/x/sys/windows"
)

// NVMLUUIDs returns the UUIDs of the NVIDIA GPUs at places on the PCI bus, which
// [NVMLBusID] writes, by their place. One that does not answer is left out, and the
// error says why. Without NVIDIA's driver the error matches
// [errors.ErrUnsupported].
//
// The driver may take its time, and a call cannot be broken off.
func NVMLUUIDs(busIDs []string) (uuids map[string]string, err error) {
	for _, proc := range []*windows.LazyProc{procnvmlInit_v2, procnvmlShutdown, procnvmlDeviceGetHandleByPciBusId_v2, procnvmlDeviceGetUUID} {
		if err := available(proc); err != nil {
			return nil, err
		}
	}
	if err := nvmlFailed(nvmlInit()); err != nil {
		return nil, fmt.Errorf("start NVML: %w", err)
	}
	defer func() {
		if failed := nvmlFailed(nvmlShutdown()); failed != nil {
			err = errors.Join(err, fmt.Errorf("end NVML: %w", failed))
		}
	}()
	uuids = map[string]string{}
	var failed []error
	for _, busID := range busIDs {
		uuid, err := nvmlUUID(busID)
		if err != nil {
			failed = append(failed, fmt.Errorf("ask NVML for the UUID of %s: %w", busID, err))
			continue
		}
		uuids[busID] = uuid
	}
	return uuids, errors.Join(failed...)
}

func nvmlUUID(busID string) (string, error) {
	place, err := windows.BytePtrFromString(busID)
	if err != nil {
		return "", err
	}
	var device uintptr
	if err := nvmlFailed(nvmlDeviceByBusID(place, &device)); err != nil {
		return "", err
	}
	var buffer [nvmlUUIDSize]byte
	if err := nvmlFailed(nvmlDeviceUUID(device, &buffer[0], nvmlUUIDSize)); err != nil {
		return "", err
	}
	return cString(buffer[:]), nil
}
