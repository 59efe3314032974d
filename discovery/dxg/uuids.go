//go:build linux

package dxg

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"strings"
	"time"

	"directx-nri/internal/durable"
)

// UUIDs returns the UUIDs of NVIDIA's GPUs by place on the host's PCI bus, for
// [discovery.WithUUIDs]. It asks nvidia-smi, which comes with the driver: NVIDIA's library
// is for programs with cgo. Without nvidia-smi, as in a container, the error matches
// [errors.ErrUnsupported].
func UUIDs([]string) (map[string]string, error) {
	return askNVIDIASMI(wsl+"/lib/nvidia-smi", 30*time.Second)
}

func askNVIDIASMI(program string, timeout time.Duration) (map[string]string, error) {
	switch err := durable.CheckFile(program); {
	case errors.Is(err, fs.ErrNotExist):
		return nil, errors.ErrUnsupported
	case err != nil:
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	command := exec.CommandContext(ctx, program, "--query-gpu=pci.bus_id,uuid", "--format=csv,noheader")
	command.Env = []string{"LD_LIBRARY_PATH=" + wsl + "/lib"}
	command.WaitDelay = time.Second
	out, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("ask %s: %w", program, errors.Join(context.Cause(ctx), err))
	}
	uuids := map[string]string{}
	for line := range bytes.Lines(out) {
		if place, uuid, ok := strings.Cut(strings.TrimSpace(string(line)), ", "); ok {
			uuids[strings.ToUpper(place)] = uuid
		}
	}
	return uuids, nil
}
