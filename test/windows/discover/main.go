//go:build windows

// The command discover runs the product's discovery and prints the result as JSON:
//
//	discover list            the devices
//	discover identified      the devices with the UUIDs of NVIDIA's driver
//	discover find ID...      a lookup, as for a pod's container
//	discover watch           the devices now and after each change, a line each
//	discover display         nothing, but Wine sets its display up
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/windows"

	"directx-nri/discovery"
	"directx-nri/discovery/pnp"
)

func main() {
	err := run(context.Background(), os.Args[1:])
	if err == nil {
		err = released()
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "discover: %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return errors.New("usage: discover list | identified | find ID... | watch | display")
	}
	system := pnp.NewSystem()
	if args[0] == "identified" {
		system = pnp.NewSystemWithUUIDs()
	}
	source := pnp.Open(system, logrus.New())
	switch command, args := args[0], args[1:]; command {
	case "list", "identified":
		devices, err := source.Devices(ctx)
		if err != nil {
			return err
		}
		return write(devices)
	case "find":
		devices, err := source.Find(ctx, args)
		if err != nil {
			return err
		}
		return write(devices)
	case "watch":
		return watch(ctx, source)
	case "display":
		_, _, _ = windows.NewLazySystemDLL("user32.dll").NewProc("GetDesktopWindow").Call()
		return nil
	default:
		return fmt.Errorf("unknown command %s", command)
	}
}

// watch prints the devices now and after each change.
func watch(ctx context.Context, source discovery.Source) error {
	changes := make(chan struct{}, 1)
	changes <- struct{}{}
	ctx, cancel := context.WithCancelCause(ctx)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel(nil)
	watching.Go(func() {
		cancel(source.Watch(ctx, func() {
			select {
			case changes <- struct{}{}:
			default: // One is pending.
			}
		}))
	})
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-changes:
		}
		devices, err := source.Devices(ctx)
		if err != nil {
			return err
		}
		if err := write(devices); err != nil {
			return err
		}
	}
}

// released returns an error unless all objects of the dxcore.dll double are released.
func released() error {
	objects := windows.NewLazySystemDLL("dxcore.dll").NewProc("DXCoreDoubleObjects")
	if objects.Find() != nil {
		return nil // The double is disabled.
	}
	if n, _, _ := objects.Call(); n != 0 {
		return fmt.Errorf("%d objects of DXCore are not released", n)
	}
	return nil
}

func write(v any) error { return json.NewEncoder(os.Stdout).Encode(v) }
