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
	flags.StringVar(&s.inventory, "inventory", "", "inventory file that describes the GPUs (default: as in config.yaml, and else the node is asked)")
	flags.StringVar(&s.shimConfig, "shim-config", paths.OfThisSystem().Config, "the shim's configuration file")
}

// open returns the source of the node's GPUs. It reads nothing but config.yaml.
func (s *gpuSource) open() (discovery.Source, error) {
	inventory := s.inventory
	if inventory == "" {
		c, err := config.Read(s.shimConfig)
		if err != nil {
			return nil, fmt.Errorf("%w; name an inventory file with --inventory", err)
		}
		inventory = c.Inventory
	}
	// What the source has to say that is no answer stands in the answer.
	log := logrus.New()
	log.SetOutput(io.Discard)
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
