//go:build windows

// The command devices creates the devices that a file describes (package hardware) and
// removes all others, including Wine's own, through Windows' APIs for installers. Existing
// devices are changed in place.
//
// It has its own declarations of Windows' APIs, because those of the product are tested.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"directx-nri/test/windows/hardware"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "devices: %v\n", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 1 {
		return errors.New("usage: devices FILE")
	}
	data, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	var node hardware.Node
	if err := json.Unmarshal(data, &node); err != nil {
		return fmt.Errorf("%s: %w", args[0], err)
	}
	events, err := removeOthers(node.Devices)
	if err != nil {
		return err
	}
	for _, d := range node.Devices {
		more, err := install(d)
		if err != nil {
			return fmt.Errorf("device %s: %w", d.InstanceID, err)
		}
		events = append(events, more...)
	}
	return report(events)
}
