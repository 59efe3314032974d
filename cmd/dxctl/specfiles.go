package main

import (
	"runtime"

	"github.com/spf13/pflag"

	"directx-nri/internal/cli"
	"directx-nri/internal/hostfiles"
	"directx-nri/nri/decision"
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

func (n *nodeFiles) files() decision.Files {
	if n.assume {
		return hostfiles.Assumed{}
	}
	if n.root == "" && runtime.GOOS != "windows" {
		return hostfiles.Root("/")
	}
	return hostfiles.Root(n.root)
}
