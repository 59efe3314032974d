package nvidia

import (
	"context"
	"errors"
	"io/fs"
	"os/exec"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/access"
	"github.com/directx-nri/directx-nri/internal/winpath"
)

// newCommand returns the command that runs nvidia-smi.exe, which is in the driver store directory of the
// GPUs' driver.
func newCommand(ctx context.Context, _ string, gpus []discovery.Device) (*exec.Cmd, error) {
	for _, d := range gpus {
		program, err := access.CheckTrusted("", winpath.Join(d.DriverStorePath, "nvidia-smi.exe"))
		if d.DriverStorePath == "" || errors.Is(err, fs.ErrNotExist) {
			continue
		}
		return exec.CommandContext(ctx, program), err
	}
	return nil, errors.New("the driver has no nvidia-smi.exe")
}
