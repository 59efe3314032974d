package main

import (
	"context"
	"fmt"
	"io"

	"github.com/sirupsen/logrus"
	"github.com/spf13/pflag"

	"directx-nri/discovery"
	"directx-nri/discovery/live"
	"directx-nri/internal/config"
	"directx-nri/internal/paths"
)

// gpuSource is where a command takes the node's GPUs from.
type gpuSource struct {
	inventory  string
	shimConfig string
}

func (s *gpuSource) addFlags(flags *pflag.FlagSet) {
	flags.SortFlags = false
	flags.StringVar(&s.inventory, "inventory", "", "inventory `FILE` that describes the GPUs (default: as in config.yaml, and else the node is asked)")
	flags.StringVar(&s.shimConfig, "shim-config", paths.OfThisSystem().Config, "the shim's configuration `FILE`")
}

// open returns the source of the node's GPUs. It reads nothing but config.yaml.
// What the source has to say that is no answer stands in the answer.
func (s *gpuSource) open() (discovery.Source, error) { return s.openWithLog(io.Discard) }

// openWithLog is open for a source that is used for longer: w is told of what it
// could not read since.
func (s *gpuSource) openWithLog(w io.Writer) (discovery.Source, error) {
	inventory := s.inventory
	if inventory == "" {
		c, err := config.Read(s.shimConfig)
		if err != nil {
			return nil, fmt.Errorf("%w; name an inventory file with --inventory", err)
		}
		inventory = c.Inventory
	}
	log := logrus.New()
	log.SetOutput(w)
	log.SetLevel(logrus.WarnLevel)
	log.SetFormatter(&logrus.TextFormatter{FullTimestamp: true, DisableColors: true})
	source, err := live.Open(inventory, log)
	if err != nil {
		return nil, fmt.Errorf("%w; name one with --inventory", err)
	}
	return source, nil
}

// devices returns the node's GPUs, in the order by which an index counts.
func (s *gpuSource) devices(ctx context.Context) ([]discovery.Device, error) {
	source, err := s.open()
	if err != nil {
		return nil, err
	}
	return source.Devices(ctx)
}
