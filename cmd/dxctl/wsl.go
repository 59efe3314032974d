package main

import (
	"os"
	"path/filepath"
	"strings"

	"directx-nri/cmd/dxctl/doctor"
)

// wslFacts returns what GPUs in WSL depend on, nil if root is not that of WSL.
// https://github.com/microsoft/WSL/issues/423#issuecomment-221627364
func wslFacts(root string) *doctor.WSL {
	release, _ := os.ReadFile(filepath.Join(root, "proc/sys/kernel/osrelease"))
	kernel := strings.TrimSpace(string(release))
	if !strings.Contains(strings.ToLower(kernel), "microsoft") {
		return nil
	}
	return &doctor.WSL{
		Kernel: kernel, Driver: exists(filepath.Join(root, "dev/dxg")), Libraries: exists(filepath.Join(root, "usr/lib/wsl/lib")),
		Systemd: exists(filepath.Join(root, "run/systemd/system")), // as sd_booted(3) does
	}
}
