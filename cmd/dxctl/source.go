package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"

	"github.com/sirupsen/logrus"
	"github.com/spf13/pflag"

	"directx-nri/discovery"
	"directx-nri/discovery/live"
	"directx-nri/internal/capabilities"
	"directx-nri/internal/config"
	"directx-nri/nri/decision"
	"directx-nri/ocispec"
)

// gpuSource is where a command takes the node's GPUs from, and what the node's
// configuration says of them.
type gpuSource struct {
	inventory string
	file      string
}

// addFlags adds --config, which before there was one file for all programs was
// called as it is still taken.
func (s *gpuSource) addFlags(flags *pflag.FlagSet) {
	s.addInventory(flags)
	flags.StringVar(&s.file, "config", config.Path(), "the node's configuration `FILE`; \"\" stands for the defaults")
	s.addShimConfig(flags)
	flags.Lookup("shim-config").Hidden = true
}

// addShimConfig adds the flag of a command whose --config is containerd's file.
func (s *gpuSource) addShimConfig(flags *pflag.FlagSet) {
	flags.StringVar(&s.file, "shim-config", config.Path(), "our configuration `FILE`")
}

func (s *gpuSource) addInventory(flags *pflag.FlagSet) {
	flags.SortFlags = false
	flags.StringVar(&s.inventory, "inventory", "", "inventory `FILE` that describes the GPUs (default: as in config.yaml, and else the node is asked)")
}

// settings returns the configuration as the runtime shim reads it: the variables of
// the environment count more than the file, and where the file has turned bad its
// last good copy stands for it, of which stderr is told. What is in more counts most.
func (s *gpuSource) settings(stderr io.Writer, more ...config.Override) (config.Config, error) {
	c, bad, err := config.ReadOrLastGood(s.file, append(config.Environment(os.Environ()), more...)...)
	if bad != nil {
		fmt.Fprintf(stderr, "dxctl: %v; its last good copy, %s%s, is in force\n", bad, s.file, config.LastGood)
	}
	if err != nil {
		return config.Config{}, fmt.Errorf("%w; name another file with --config, or none with --config \"\"", err)
	}
	return c, nil
}

// node returns what the configuration says, and the source of the GPUs. It reads
// nothing else.
func (s *gpuSource) node(stderr io.Writer) (config.Config, discovery.Source, error) {
	c, err := s.settings(stderr)
	if err != nil {
		return config.Config{}, nil, err
	}
	source, err := s.openAs(c, io.Discard)
	return c, source, err
}

// openAs returns the source of the node's GPUs by the configuration c. What it has
// to say that is no answer stands in the answer; w is told of what it could not
// read since.
func (s *gpuSource) openAs(c config.Config, w io.Writer) (discovery.Source, error) {
	log := logrus.New()
	log.SetOutput(w)
	log.SetLevel(logrus.WarnLevel)
	log.SetFormatter(&logrus.TextFormatter{FullTimestamp: true, DisableColors: true})
	source, err := live.Open(cmp.Or(s.inventory, c.Inventory), log)
	if err != nil {
		return nil, fmt.Errorf("%w; name one with --inventory", err)
	}
	byClass := policyOf(c, ocispec.OS(c.ContainerOS)).ByClass
	return discovery.ByClass(source, func() bool { return byClass }), nil
}

// known is settings for a command that can do without: when an inventory file is
// named, stderr is told why there is no configuration, and ok is false.
func (s *gpuSource) known(stderr io.Writer) (c config.Config, ok bool, err error) {
	c, err = s.settings(stderr)
	if err != nil && s.inventory != "" {
		fmt.Fprintf(stderr, "dxctl: which resources offer these GPUs is not told: %v\n", err)
		return config.Default(), false, nil
	}
	return c, err == nil, err
}

// devices returns the node's GPUs, in the order by which an index counts.
func (s *gpuSource) devices(ctx context.Context) ([]discovery.Device, error) {
	c, _, err := s.known(io.Discard)
	if err != nil {
		return nil, err
	}
	source, err := s.openAs(c, io.Discard)
	if err != nil {
		return nil, err
	}
	return source.Devices(ctx)
}

// policyOf returns what c says about what containers get. What assignmentMode auto
// stands for, this machine's Windows says; elsewhere single devices are given.
func policyOf(c config.Config, os ocispec.OS) decision.Policy {
	p := c.Policy()
	return decision.PolicyOf(p, !capabilities.Resolve(p.Assignment, string(os), capabilities.AskQuickly).Individual)
}
