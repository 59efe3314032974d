//go:build e2e && linux

package bed

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	suite "directx-nri/test/bed"
)

// Main runs the tests of m with a prefix in *wine and returns the exit status. If they
// cannot run here, it sets *skip to the reason, or fails if CI=true or
// DIRECTX_NRI_E2E=required.
func Main(m *testing.M, wine **Wine, skip *string) (status int) {
	p, err := findParts()
	if err != nil {
		if os.Getenv("CI") == "true" || os.Getenv("DIRECTX_NRI_E2E") == "required" {
			fmt.Fprintf(os.Stderr, "the Windows suite is required and cannot run: %v\n", err)
			return 1
		}
		fmt.Fprintf(os.Stderr, "the Windows suite is skipped: %v\n", err)
		*skip = err.Error()
		return m.Run()
	}
	w, err := open(context.Background(), p)
	if err != nil {
		fmt.Fprintf(os.Stderr, "the Windows suite: %v\n", err)
		return 1
	}
	defer func() {
		if err := w.close(); err != nil {
			fmt.Fprintf(os.Stderr, "the Windows suite: %v\n", err)
			status = max(status, 1)
		}
	}()
	*wine = w
	return m.Run()
}

// Directories of the stock parts, beside that of the parts for Linux.
const (
	windowsParts = "windows"
	containerd2  = "windows-containerd2"
	newHcsshim   = "windows-hcsshim-new"
)

// Names of the programs on a node.
const (
	containerdExe = "containerd.exe"
	ctrExe        = "ctr.exe"
	clientExe     = "client.exe"
	runhcsExe     = "containerd-shim-runhcs-v1.exe"
	plainExe      = "containerd-shim-plain-v1.exe"
	directxExe    = "containerd-shim-directx-v1.exe"
	dxctlExe      = "dxctl.exe"
	restartExe    = "restart.exe"
	stacksExe     = "stacks.exe"
	robustSo      = "robust.so"
)

// parts are the programs that the suite runs.
type parts struct {
	suite.Parts
	products string
}

// stock returns the path of a stock part.
func (p parts) stock(dir, name string) string { return p.Stock(filepath.Join("..", dir, name)) }

// findParts returns the parts, or an error that names what is missing and the command
// that creates it.
func findParts() (parts, error) {
	if os.Geteuid() != 0 {
		return parts{}, errors.New("it needs root, as containerd does: run it with sudo")
	}
	stock, err := suite.FindParts()
	p := parts{stock, filepath.Join(stock.Root, "bin", "windows-amd64")}
	if err != nil {
		return p, err
	}
	if dir := os.Getenv("DIRECTX_NRI_WINDOWS_BIN"); dir != "" {
		p.products = dir
	}
	for dir, names := range map[string][]string{
		windowsParts: {containerdExe, ctrExe, runhcsExe, clientExe, "vmcompute.dll", "bcryptprimitives.dll", "dxcore.dll", "cfgmgr32.dll", "computecore.dll", "nvml.dll"},
		containerd2:  {containerdExe, ctrExe},
		newHcsshim:   {runhcsExe},
	} {
		for _, name := range names {
			if err := p.CheckStock(filepath.Join("..", dir, name), "windows"); err != nil {
				return p, err
			}
		}
	}
	if err := p.CheckStock(filepath.Join("..", windowsParts, robustSo), "windows"); err != nil {
		return p, err
	}
	for _, name := range []string{"wine64", "wineserver"} {
		if _, err := findWine(name); err != nil {
			return p, err
		}
	}
	for _, name := range []string{directxExe, dxctlExe} {
		if _, err := os.Stat(filepath.Join(p.products, name)); err != nil {
			return p, fmt.Errorf("the product's %s is missing: run make build-windows-amd64 (%w)", name, err)
		}
	}
	return p, nil
}
