package shim

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/discovery/node"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/shimfile"
	"github.com/directx-nri/directx-nri/ocispec"
)

// selfTest tests on this machine, with a made-up container and a GPU whose files exist
// on each node, whether the shim edits the spec, and leaves another spec as it is.
func selfTest() error {
	dir, err := os.MkdirTemp(os.Getenv(shimfile.SelfTestParent), "directx-nri-self-test-")
	if err != nil {
		return err
	}
	// A virus scanner may still have files open. The next installation removes them.
	defer func() { _ = os.RemoveAll(dir) }()
	gpu := discovery.Device{InstanceID: "SELF-TEST", SupportsDisplay: true}
	system, want := `"linux":{}`, `"path":"/dev/null"`
	if runtime.GOOS == "windows" {
		gpu.LocationPath = "PCIROOT(0)#PCI(1B00)"
		system, want = `"windows":{"layerFolders":["C:\\none"]}`, ocispec.IDTypeLocationPath
	} else {
		gpu.DeviceNodes = []discovery.DeviceNode{{Path: "/dev/null", ContainerPath: "/dev/null"}}
	}
	p := policy.Default()
	p.UseInventory, p.StandaloneEnvironment = true, true
	p.Assignment = policy.AssignByPath   // on each version of Windows
	p.Shim.Log = os.DevNull              // Windows keeps the directory of an open file.
	state := filepath.Join(dir, "state") // The directory itself is not private on Windows.
	if err := errors.Join(node.Inventory(state).Write([]discovery.Device{gpu}), policy.Write(state, p)); err != nil {
		return err
	}
	for _, variable := range []string{"DIRECTX_VISIBLE_DEVICES=all", "A=B"} {
		before := `{"ociVersion":"1.1.0","process":{"env":["` + variable + `"]},` + system + `}`
		config := filepath.Join(dir, specName)
		if err := os.WriteFile(config, []byte(before), 0o600); err != nil {
			return err
		}
		if err := newShim(call{args: []string{"start"}, bundle: dir, stateDir: state}).prepare(); err != nil {
			return err
		}
		after, err := os.ReadFile(config)
		switch requests := variable != "A=B"; {
		case err != nil:
			return err
		case requests && !bytes.Contains(after, []byte(want)) || !requests && string(after) != before:
			return fmt.Errorf("the spec of a container with %s is now %s", variable, after)
		}
	}
	return nil
}
