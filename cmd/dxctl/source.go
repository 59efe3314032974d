package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"runtime"

	"github.com/spf13/pflag"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/discovery/node"
	"github.com/directx-nri/directx-nri/internal/capabilities"
	"github.com/directx-nri/directx-nri/internal/config"
	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/internal/policy"
)

// nodeConfig selects the policy and the GPUs that a command uses: by default those
// of this node.
type nodeConfig struct {
	stateDir, config, inventory string
	// acts reports that the command acts on the result: not anyone may have written the
	// inventory.
	acts bool
}

func (n *nodeConfig) addFlags(flags *pflag.FlagSet) {
	flags.SortFlags = false
	flags.StringVar(&n.inventory, "inventory", "", "inventory `FILE` of the GPUs (default: this node's GPUs)")
	flags.StringVar(&n.config, "config", "", "configuration `FILE` (default: the node policy in force)")
	flags.StringVar(&n.stateDir, "state-dir", paths.Default().State, "state `DIRECTORY`")
}

// open returns the policy and the source of the GPUs.
func (n *nodeConfig) open(stderr io.Writer) (discovery.Source, policy.Policy, error) {
	p, devices, err := n.read(stderr)
	if err != nil {
		return nil, p, err
	}
	var source discovery.Source = discovery.Static(devices)
	switch {
	case n.inventory != "":
		if devices, err = config.ReadInventory(n.inventory, !n.acts); err != nil {
			return nil, p, err
		}
		source = discovery.Static(devices)
	case n.config != "" && p.Inventory:
	default:
		p.Inventory = p.Inventory && n.config == ""
		if source, err = openPolicy(p, n.stateDir); err != nil {
			return nil, p, fmt.Errorf("%w; --inventory names a file", err)
		}
	}
	return discovery.ByClass(source, capabilities.InForce(p, runtime.GOOS).ByClass()), p, nil
}

// read returns the policy, and the devices that it was compiled with by --config.
func (n *nodeConfig) read(stderr io.Writer) (policy.Policy, []discovery.Device, error) {
	if n.config != "" {
		return config.Compiler{File: n.config, Required: true, StateDir: n.stateDir, NodeOS: runtime.GOOS, Inspect: n.inventory != ""}.Compile()
	}
	p, err := policy.Read(n.stateDir)
	if errors.Is(err, fs.ErrPermission) && n.inventory != "" {
		fmt.Fprintf(stderr, "dxctl: the defaults are used instead of the node policy: %v\n", err)
		return policy.Default(), nil, nil
	}
	return p, nil, withRemedy(err)
}

// withRemedy adds the remedy to an error about a lack of permission.
func withRemedy(err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w; run dxctl as root, or as an administrator on Windows", err)
	}
	return err
}

// openPolicy opens the source of the GPUs of a node with the policy p.
func openPolicy(p policy.Policy, stateDir string) (discovery.Source, error) {
	return node.Open(node.Options{Inventory: p.Inventory, StateDir: stateDir, Live: true})
}
