package nvidia

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/directx-nri/directx-nri/discovery"
)

// queryTimeout is the time limit of nvidia-smi. It takes seconds when the system starts, and the
// driver can hang.
const queryTimeout = 10 * time.Second

// query returns the UUIDs that nvidia-smi reports, by PCI address. nvidia-smi comes with the
// driver of gpus, and a driver that hangs or crashes does not affect this process. The error
// matches [errors.ErrUnsupported] if there is no nvidia-smi.
func query(ctx context.Context, hostRoot string, gpus []discovery.Device) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	command, err := newCommand(ctx, hostRoot, gpus)
	if err != nil {
		return nil, err
	}
	return run(ctx, command)
}

// run adds the arguments to nvidia-smi's command, and returns the UUIDs in its output. If one GPU
// fails, so does nvidia-smi, but it can report the others.
// https://docs.nvidia.com/deploy/nvidia-smi/index.html
func run(ctx context.Context, command *exec.Cmd) (map[string]string, error) {
	command.Args = append(command.Args, "--query-gpu=pci.bus_id,uuid", "--format=csv,noheader")
	command.WaitDelay = time.Second
	output, err := command.Output()
	if err != nil {
		err = fmt.Errorf("query %s: %w", command.Path, errors.Join(context.Cause(ctx), err))
	}
	uuids := map[string]string{}
	for line := range bytes.Lines(output) {
		address, uuid, _ := strings.Cut(strings.TrimSpace(string(line)), ", ")
		if strings.HasPrefix(uuid, "GPU-") {
			uuids[strings.ToUpper(address)] = uuid
		}
	}
	return uuids, err
}
