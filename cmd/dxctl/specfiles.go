package main

import (
	"errors"
	"io/fs"
	"runtime"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/spf13/pflag"

	"directx-nri/internal/cli"
	"directx-nri/internal/hostfiles"
	"directx-nri/internal/winpath"
	"directx-nri/ocispec"
)

// nodeFiles is where a command looks for the files of the node's drivers.
type nodeFiles struct {
	root   string
	assume bool
}

func (n *nodeFiles) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&n.root, "host-root", "", "`FOLDER` in which the node's root is seen, to look for its files there (default: the root of this system)")
	flags.BoolVar(&n.assume, "assume-files", false, "take the files that a driver lists for there, and look for none: for an inventory of another node")
}

// check returns what is wrong with the flags.
func (n *nodeFiles) check() error {
	if n.assume && n.root != "" {
		return cli.Usage("--assume-files excludes --host-root: it looks for no files")
	}
	return nil
}

func (n *nodeFiles) files() ocispec.Files {
	if n.assume {
		return assumedFiles{}
	}
	if n.root == "" && runtime.GOOS != "windows" {
		return hostfiles.Root("/")
	}
	return hostfiles.Root(n.root)
}

// assumedFiles are those of a node that is not this one: all are there, and none
// is a link.
type assumedFiles struct{}

// Resolve implements [ocispec.Files].
func (assumedFiles) Resolve(path string) (string, error) {
	if winpath.IsAbs(path) {
		return winpath.Clean(path), nil
	}
	return path, nil
}

// DeviceNode implements [ocispec.Files]. It describes this system's node, and
// where there is none one whose numbers are nobody's.
func (assumedFiles) DeviceNode(path string) (specs.LinuxDevice, error) {
	node, err := hostfiles.Root("/").DeviceNode(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errors.ErrUnsupported) {
		return specs.LinuxDevice{Path: path, Type: "c"}, nil
	}
	return node, err
}
