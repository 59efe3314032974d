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

// newCommand returns the command that runs nvidia-smi of the VM whose root is hostRoot. In a container, it
// runs with the loader of the VM, because the container's image need not have glibc.
func newCommand(ctx context.Context, hostRoot string, _ []discovery.Device) (*exec.Cmd, error) {
	root := filepath.Clean("/" + hostRoot)
	program, err := findProgram(root, wslLibraries+"/nvidia-smi", "/usr/bin/nvidia-smi")
	if err != nil {
		return nil, err
	}
	var libraries []string
	if dir, err := findProgram(root, wslLibraries); err == nil {
		libraries = append(libraries, dir)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	command := exec.CommandContext(ctx, program)
	if root != "/" {
		// Only /usr/lib and /dev may be mounted: not /lib64, nor the loader's cache.
		name := map[string]string{"amd64": "ld-linux-x86-64.so.2", "arm64": "ld-linux-aarch64.so.1"}[runtime.GOARCH]
		debian := map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}[runtime.GOARCH]
		// Debian's, Fedora's, Azure Linux's
		loader, err := findProgram(root, "/usr/lib/"+debian+"/"+name, "/usr/lib64/"+name, "/usr/lib/"+name)
		if err != nil {
			return nil, err
		}
		libraries = append(libraries, filepath.Dir(loader))
		command.Path, command.Args = loader, append([]string{loader}, command.Args...)
		command.Dir = "/"
		command.SysProcAttr = &syscall.SysProcAttr{Chroot: root}
	}
	command.Env = []string{"LD_LIBRARY_PATH=" + strings.Join(libraries, ":")}
	return command, nil
}

// findProgram returns the path below root of the first of paths that exists, a program or the directory of its
// libraries, with all links followed.
func findProgram(root string, paths ...string) (found string, err error) {
	for _, path := range paths {
		if found, err = access.CheckTrusted(root, path); !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	return "/" + strings.TrimPrefix(strings.TrimPrefix(found, root), "/"), err
}
