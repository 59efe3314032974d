//go:build e2e && linux

package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"directx-nri/internal/shimfile"
)

// parts are the programs that a node is made of.
type parts struct {
	root     string // of the repository
	dir      string // containerd, ctr, the shim and the kubelet
	products string // the product's own binaries
}

// findParts looks for the parts where their builds put them, or where
// DIRECTX_NRI_PARTS and DIRECTX_NRI_BIN say.
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
	p := parts{root: root, dir: filepath.Join(root, ".parts", "bin"), products: filepath.Join(root, "bin")}
	if dir := os.Getenv("DIRECTX_NRI_PARTS"); dir != "" {
		p.dir = dir
	}
	if dir := os.Getenv("DIRECTX_NRI_BIN"); dir != "" {
		p.products = dir
	}
	return p, nil
}

func isModule(dir string) bool {
	data, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	return err == nil && strings.HasPrefix(string(data), "module directx-nri\n")
}

// check returns what is missing, with the command that makes it.
func (p parts) check() error {
	for _, name := range []string{"containerd", "ctr", "containerd-shim-runc-v2", "nerdctl", "kubelet"} {
		if _, err := os.Stat(p.part(name)); err != nil {
			return fmt.Errorf("the stock part %s is missing: run test/parts/build.sh (%w)", name, err)
		}
	}
	for _, name := range []string{"directx-advertiser", "directx-nri", "dxctl", shimfile.Name()} {
		if _, err := os.Stat(p.product(name)); err != nil {
			return fmt.Errorf("the product's %s is missing: run make build (%w)", name, err)
		}
	}
	for _, name := range []string{"runc", "busybox"} {
		if _, err := exec.LookPath(name); err != nil {
			return fmt.Errorf("%s is missing: run test/parts/build.sh as root, or install the packages runc and busybox-static (%w)", name, err)
		}
	}
	if _, err := os.Stat("/sys/fs/cgroup"); errors.Is(err, fs.ErrNotExist) {
		return errors.New("control groups are not mounted at /sys/fs/cgroup: the suite needs them for containers")
	}
	return nil
}

func (p parts) part(name string) string    { return filepath.Join(p.dir, name) }
func (p parts) product(name string) string { return filepath.Join(p.products, name) }
