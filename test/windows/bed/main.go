//go:build e2e && linux

package bed

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const (
	// requiredVar set to "required" turns what would skip the suite into a
	// failure, as CI=true does.
	requiredVar = "DIRECTX_NRI_E2E"
	// keepVar, when set, leaves the run's folder for a look at it.
	keepVar = "DIRECTX_NRI_E2E_KEEP"
)

// exitFailed is the exit status for a suite that could not run or could not
// clean up.
const exitFailed = 1

// Main runs the tests of m, which find the prefix in *wine, and returns the
// exit status. When they cannot run here it sets *skip to the reason.
func Main(m *testing.M, wine **Wine, skip *string) (status int) {
	p, err := findParts()
	if err == nil {
		err = p.check()
	}
	if err != nil {
		if os.Getenv("CI") == "true" || os.Getenv(requiredVar) == "required" {
			fmt.Fprintf(os.Stderr, "the Windows suite is required here and cannot run: %v\n", err)
			return exitFailed
		}
		fmt.Fprintf(os.Stderr, "the Windows suite is skipped: %v\n", err)
		*skip = err.Error()
		return m.Run()
	}
	w, err := open(context.Background(), p)
	if err != nil {
		fmt.Fprintf(os.Stderr, "the Windows suite: %v\n", err)
		return exitFailed
	}
	defer func() {
		if err := w.close(); err != nil {
			fmt.Fprintf(os.Stderr, "the Windows suite: %v\n", err)
			status = max(status, exitFailed)
		}
	}()
	*wine = w
	return m.Run()
}

// Folders of the stock parts, below .parts.
const (
	windowsParts = "windows"
	containerd2  = "windows-containerd2"
	newHcsshim   = "windows-hcsshim-new"
)

// Programs by the names that they go by on a node.
const (
	containerdExe = "containerd.exe"
	ctrExe        = "ctr.exe"
	clientExe     = "client.exe"
	runhcsExe     = "containerd-shim-runhcs-v1.exe"
	plainExe      = "containerd-shim-plain-v1.exe"
	directxExe    = "containerd-shim-directx-v1.exe"
	dxctlExe      = "dxctl.exe"
	restartExe    = "restart.exe"
)

// parts say where the programs are.
type parts struct {
	root     string // of the repository
	stock    string
	products string
}

func findParts() (parts, error) {
	root, err := os.Getwd()
	if err != nil {
		return parts{}, err
	}
	for !isModule(root) {
		parent := filepath.Dir(root)
		if parent == root {
			return parts{}, errors.New("the repository's go.mod was not found above the working folder: run the tests with `go test` in the repository")
		}
		root = parent
	}
	p := parts{root: root, stock: filepath.Join(root, ".parts"), products: filepath.Join(root, "bin", "windows-amd64")}
	if dir := os.Getenv("DIRECTX_NRI_PARTS"); dir != "" {
		p.stock = filepath.Dir(dir)
	}
	if dir := os.Getenv("DIRECTX_NRI_WINDOWS_BIN"); dir != "" {
		p.products = dir
	}
	return p, nil
}

func isModule(dir string) bool {
	data, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	return err == nil && strings.HasPrefix(string(data), "module directx-nri\n")
}

func (p parts) folder(name string) string { return filepath.Join(p.stock, name) }

// check returns what is missing, with the command that makes it.
func (p parts) check() error {
	if os.Geteuid() != 0 {
		return errors.New("it runs as root, as containerd does on a node: run it with sudo")
	}
	for _, part := range []string{
		windowsParts + "/" + containerdExe, windowsParts + "/" + ctrExe, windowsParts + "/" + runhcsExe, windowsParts + "/" + clientExe,
		windowsParts + "/vmcompute.dll", windowsParts + "/bcryptprimitives.dll", windowsParts + "/dxcore.dll", windowsParts + "/cfgmgr32.dll", windowsParts + "/computecore.dll", windowsParts + "/nvml.dll",
		containerd2 + "/" + containerdExe, containerd2 + "/" + ctrExe, newHcsshim + "/" + runhcsExe,
	} {
		if _, err := os.Stat(p.folder(part)); err != nil {
			return fmt.Errorf("the stock part %s is missing: run test/parts/build.sh windows (%w)", part, err)
		}
	}
	for _, name := range []string{"wine64", "wineserver"} {
		if _, err := findWine(name); err != nil {
			return err
		}
	}
	for _, name := range []string{directxExe, dxctlExe} {
		if _, err := os.Stat(filepath.Join(p.products, name)); err != nil {
			return fmt.Errorf("the product's %s is missing: run make build-windows-amd64 (%w)", name, err)
		}
	}
	return nil
}
