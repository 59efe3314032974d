package nvidia

import (
	"context"
	"errors"
	"io/fs"
	"os/exec"

	"golang.org/x/sys/windows"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/access"
	"github.com/directx-nri/directx-nri/internal/winpath"
)

// newCommand returns the command that runs nvidia-smi.exe. It is in the driver store directory
// of the GPUs' driver, and installations copy it to System32. Older drivers have it in
// C:\Program Files\NVIDIA Corporation\NVSMI.
// https://stackoverflow.com/questions/57100015/how-do-i-run-nvidia-smi-on-windows
func newCommand(ctx context.Context, _ string, gpus []discovery.Device) (*exec.Cmd, error) {
	system32, err := windows.GetSystemDirectory()
	programs, programsErr := windows.KnownFolderPath(windows.FOLDERID_ProgramFiles, 0)
	if err := errors.Join(err, programsErr); err != nil {
		return nil, err
	}
	var directories []string
	for _, d := range gpus {
		if d.DriverStorePath != "" {
			directories = append(directories, d.DriverStorePath)
		}
	}
	for _, directory := range append(directories, system32, winpath.Join(programs, `NVIDIA Corporation\NVSMI`)) {
		program := winpath.Join(directory, "nvidia-smi.exe")
		err := access.CheckProgram(program)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		return exec.CommandContext(ctx, program), err
	}
	return nil, errors.ErrUnsupported
}
