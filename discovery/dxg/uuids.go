//go:build linux

package dxg

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/directx-nri/directx-nri/internal/durable"
)

// UUIDs returns the UUIDs of NVIDIA's GPUs by address on the host's PCI bus, for
// [discovery.WithUUIDs]. It asks nvidia-smi, which comes with the driver: NVIDIA's library
// is for programs with cgo. Without nvidia-smi, the error matches [errors.ErrUnsupported].
//
// hostRoot is that of [Open]. A program in a container runs nvidia-smi there, with the
// VM's loader, as its own image need not have glibc.
func UUIDs(hostRoot string) (map[string]string, error) {
	return queryNVIDIASMI(hostRoot, wsl+"/lib/nvidia-smi", 30*time.Second)
}

func queryNVIDIASMI(root, program string, timeout time.Duration) (map[string]string, error) {
	switch err := durable.CheckFile(filepath.Join(root, program)); {
	case errors.Is(err, fs.ErrNotExist):
		return nil, errors.ErrUnsupported
	case err != nil:
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	command := exec.CommandContext(ctx, program, "--query-gpu=pci.bus_id,uuid", "--format=csv,noheader")
	libraries := wsl + "/lib"
	if root = filepath.Clean("/" + root); root != "/" {
		// Only /usr/lib and /dev may be mounted: not /lib64, nor the loader's cache.
		var loaders []string
		for _, directory := range []string{"lib/*-linux-gnu", "lib64", "lib"} { // Debian's, Fedora's, Azure Linux's
			found, _ := filepath.Glob(filepath.Join(root, "usr", directory, "ld-linux-*.so.?"))
			loaders = append(loaders, found...)
		}
		if len(loaders) == 0 {
			return nil, errors.ErrUnsupported
		}
		loader := strings.TrimPrefix(loaders[0], root)
		libraries += ":" + filepath.Dir(loader)
		command.Path, command.Args = loader, append([]string{loader}, command.Args...)
		command.Dir, command.SysProcAttr = "/", &syscall.SysProcAttr{Chroot: root}
	}
	command.Env = []string{"LD_LIBRARY_PATH=" + libraries}
	command.WaitDelay = time.Second
	out, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("query %s: %w", program, errors.Join(context.Cause(ctx), err))
	}
	uuids := map[string]string{}
	for line := range bytes.Lines(out) {
		if address, uuid, ok := strings.Cut(strings.TrimSpace(string(line)), ", "); ok {
			uuids[strings.ToUpper(address)] = uuid
		}
	}
	return uuids, nil
}
