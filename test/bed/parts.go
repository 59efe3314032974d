//go:build e2e && linux

package bed

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/directx-nri/directx-nri/shim/shimfile"
)

// Parts are the programs that the suites run.
type Parts struct {
	// Root is the repository's directory.
	Root     string
	dir      string // the stock parts of build.sh's group linux
	products string // the product's own binaries
}

// FindParts looks for the parts where their builds put them, or where
// DIRECTX_NRI_PARTS and DIRECTX_NRI_BIN name. The working directory is that of a suite.
func FindParts() (Parts, error) {
	root, err := filepath.Abs("../..")
	return Parts{
		Root:     root,
		dir:      cmp.Or(os.Getenv("DIRECTX_NRI_PARTS"), filepath.Join(root, ".parts", "bin")),
		products: cmp.Or(os.Getenv("DIRECTX_NRI_BIN"), filepath.Join(root, "bin")),
	}, err
}

// CheckNode returns an error if a program that every node requires is missing. The
// error names the remedy.
func (p Parts) CheckNode() error {
	for _, name := range []string{"containerd", "ctr", "containerd-shim-runc-v2", "kubelet"} {
		if err := p.CheckStock(name, ""); err != nil {
			return err
		}
	}
	for _, name := range []string{"runc", "busybox"} {
		if _, err := exec.LookPath(name); err != nil {
			return fmt.Errorf("%s is missing: run test/parts/build.sh as root, or install the packages runc and busybox-static (%w)", name, err)
		}
	}
	return nil
}

// CheckStock returns an error when a stock part is missing that a group of
// build.sh makes, "" for the one that it makes by default.
func (p Parts) CheckStock(name, group string) error {
	if _, err := os.Stat(p.Stock(name)); err != nil {
		return fmt.Errorf("the stock part %s is missing: run %s (%w)", name, strings.TrimSpace("test/parts/build.sh "+group), err)
	}
	return nil
}

// check returns an error if a program that a node of this package requires is missing.
func (p Parts) check() error {
	if err := p.CheckNode(); err != nil {
		return err
	}
	for _, name := range []string{"containerd", "ctr", "containerd-shim-runc-v2", "kubelet", "kubelet-windows", "runc"} {
		if err := p.CheckStock("../containerd2/"+name, "versions"); err != nil {
			return err
		}
	}
	if err := p.CheckStock("nerdctl", ""); err != nil {
		return err
	}
	for _, name := range []string{"directx-advertiser", "directx-nri", "dxctl", shimfile.FileName()} {
		if _, err := os.Stat(p.Product(name)); err != nil {
			return fmt.Errorf("the product's %s is missing: run make bin (%w)", name, err)
		}
	}
	return nil
}

// Stock is the path of a stock part; "../cluster/etcd" is one beside them.
func (p Parts) Stock(name string) string { return filepath.Join(p.dir, name) }

// Product is the path of one of the product's own binaries.
func (p Parts) Product(name string) string { return filepath.Join(p.products, name) }

// Stock is the path of a stock part.
func (n *Node) Stock(name string) string { return n.parts.Stock(name) }

// Product is the path of one of the product's programs.
func (n *Node) Product(name string) string { return n.parts.Product(name) }
