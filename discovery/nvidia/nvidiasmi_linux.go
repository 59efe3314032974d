package nvidia

import (
	"context"
	"errors"
	"io/fs"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/access"
)

// wslLibraries is where WSL mounts the libraries and programs of the host's drivers.
const wslLibraries = "/usr/lib/wsl/lib"

func newCommand(ctx context.Context, hostRoot string, _ []discovery.Device) (*exec.Cmd, error) {
	return commandBelow(ctx, hostRoot, wslLibraries+"/nvidia-smi")
}

// commandBelow returns the command that runs program, which is below root. In a container, it
// runs with the loader of the VM, because the container's image need not have glibc.
func commandBelow(ctx context.Context, root, program string) (*exec.Cmd, error) {
	root = filepath.Clean("/" + root)
	err := access.CheckProgramBelow(root, program)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errors.ErrUnsupported
	}
	if err != nil {
		return nil, err
	}
	command := exec.CommandContext(ctx, program)
	libraries := wslLibraries
	if root != "/" {
		// Only /usr/lib and /dev may be mounted: not /lib64, nor the loader's cache.
		name := map[string]string{"amd64": "ld-linux-x86-64.so.?", "arm64": "ld-linux-aarch64.so.?"}[runtime.GOARCH]
		var loaders []string
		for _, directory := range []string{"lib/*-linux-gnu", "lib64", "lib"} { // Debian's, Fedora's, Azure Linux's
			found, _ := filepath.Glob(filepath.Join(root, "usr", directory, name))
			loaders = append(loaders, found...)
		}
		if len(loaders) == 0 {
			return nil, errors.ErrUnsupported
		}
		loader := strings.TrimPrefix(loaders[0], root)
		if err := access.CheckProgramBelow(root, loader); err != nil {
			return nil, err
		}
		libraries += ":" + filepath.Dir(loader)
		command.Path, command.Args = loader, append([]string{loader}, command.Args...)
		command.Dir = "/"
		command.SysProcAttr = &syscall.SysProcAttr{Chroot: root}
	}
	command.Env = []string{"LD_LIBRARY_PATH=" + libraries}
	return command, nil
}
