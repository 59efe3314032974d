//go:build unix

package noderuntime

import (
	"cmp"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/directx-nri/directx-nri/advertiser/config"
	"github.com/directx-nri/directx-nri/cmd/dxctl/nodegpus"
	"github.com/directx-nri/directx-nri/discovery/node"
	"github.com/directx-nri/directx-nri/internal/access"
	"github.com/directx-nri/directx-nri/internal/durable"
	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/internal/testutil/containerdtest"
	"github.com/directx-nri/directx-nri/shim/shimfile"
)

const header = "apiVersion: directx.microsoft.com/v1alpha1\nkind: "

// inventory writes the inventory of a display GPU with a device node, or with another detail.
func (p shimNode) inventory(t *testing.T, detail string) string {
	t.Helper()
	file := filepath.Join(p.Root, "inventory.yaml")
	testutil.WriteFile(t, file, header+"Inventory\ndevices: [{instanceID: 'PCI\\1', driver: {version: '1'}, display: true, "+detail+"}]\n", 0o600)
	return file
}

// newSetup returns the options for the GPUs of an inventory.
func newSetup(inventory string) setupOptions {
	return setupOptions{gpuFlags: nodegpus.Flags{Trusted: true, Inventory: inventory}, interval: time.Millisecond}
}

// setup runs 'dxctl runtime setup' on a node until ctx ends, and returns what it prints.
func (p shimNode) setup(ctx context.Context, o setupOptions, args ...string) (string, error) {
	o.configure.OS = "linux"
	inventory := o.gpuFlags.Inventory
	command := o.command()
	var out strings.Builder
	command.SetOut(io.Discard)
	command.SetErr(&out)
	command.SilenceErrors, command.SilenceUsage = true, true
	all := append(p.Flags(), "--inventory", inventory, "--from", p.source, "--shim-dir", p.dir, "--host-root", p.host(), "--setup-file", p.report())
	command.SetArgs(append(all, args...))
	err := command.ExecuteContext(ctx)
	return out.String(), err
}

func (p shimNode) host() string   { return filepath.Join(p.Root, "host") }
func (p shimNode) report() string { return filepath.Join(p.Root, "report") }

// reported returns the content of the report, "-" if there is none.
func (p *shimNode) reported() string {
	text, err := os.ReadFile(p.report())
	if err != nil {
		return "-"
	}
	return string(text)
}

// TestSetup changes what a node has while dxctl waits.
func TestSetup(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		appear  string
		prepare func(*testing.T, *setupOptions)
		reason  string // "" for errNoGPU
	}{
		"a device node":     {appear: "host/dev/dxg"},
		"configured before": {appear: "state/runtime-configure.json"},
		"installed before":  {appear: "bin/" + shimfile.FileName()},
		"no inventory": {
			"host/dev/dxg", func(_ *testing.T, o *setupOptions) { o.gpuFlags.Inventory = "" }, node.ErrNoSource.Error() + "; set --inventory",
		},
		"its own file": {appear: "host/dev/dxg", prepare: func(t *testing.T, o *setupOptions) {
			o.defaultConfig = filepath.Join(t.TempDir(), "config.yaml")
			testutil.WriteFile(t, o.defaultConfig, header+"Configuration\ninventory: "+o.gpuFlags.Inventory+"\n", 0o600)
			o.gpuFlags.Inventory = ""
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newShimNode(t, containerdtest.Config)
			p.apply(t, p.real, "")
			o, reason := newSetup(p.inventory(t, "linux: {deviceNodes: [/dev/dxg]}")), cmp.Or(test.reason, errNoGPU.Error())
			if test.prepare != nil {
				test.prepare(t, &o)
			}
			if durable.Exists(p.report()) {
				t.Error("there is a report before")
			}
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 50*o.interval)
				defer cancel()
				out, err := p.setup(ctx, o, p.Restart()...)
				testutil.NoError(t, err)
				if strings.Count(out, "\n") != 1 || !strings.Contains(out, reason) {
					t.Errorf("without a GPU: printed %q, want one line with %q", out, reason)
				}
			})
			if p.Read(t) != containerdtest.Config {
				t.Errorf("without a GPU: the file is\n%s", p.Read(t))
			}
			if got := p.reported(); !strings.Contains(got, reason) {
				t.Errorf("report %q, want %q", got, reason)
			}

			testutil.NoError(t, os.Remove(p.report()))
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() {
				_, err := p.setup(ctx, o, p.Restart()...)
				ended <- err
			}()
			testutil.Eventually(t, "report", func() bool { return !slices.Contains([]string{"", "-"}, p.reported()) })
			text := ""
			if strings.HasPrefix(test.appear, "state/") {
				text = `{"format": 1, "config": "` + p.Config + `"}`
			}
			testutil.WriteFile(t, filepath.Join(p.Root, test.appear), text, 0o600)
			testutil.Eventually(t, "the node is set up", func() bool { return p.reported() == "" })
			cancel()
			testutil.NoError(t, <-ended)
			if p.get(t, p.shimPath()) != workingShim || !strings.Contains(p.Read(t), p.shimPath()) {
				t.Errorf("set up: the shim is %q, and the file is\n%s", p.get(t, p.shimPath()), p.Read(t))
			}
		})
	}
}

// TestSetupSteps: each step can be left out, and a failure ends the command.
func TestSetupSteps(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		args                  []string
		installed, configured bool
		want                  string // an error
	}{
		"both":           {nil, true, true, ""},
		"no shim":        {[]string{"--no-shim"}, false, true, ""},
		"no configure":   {[]string{"--no-configure"}, true, false, ""},
		"no such source": {[]string{"--from", "/nowhere/shim"}, false, false, "/nowhere/shim"},
		"wrong flag":     {[]string{"--add-handler", "A"}, false, false, "--add-handler"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newShimNode(t, "version = 2\n")
			p.apply(t, p.real, "")
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			o := newSetup(p.inventory(t, "linux: {deviceNodes: [/null]}"))
			testutil.WriteFile(t, filepath.Join(p.host(), "null"), "", 0o600)
			go func() {
				for ctx.Err() == nil && p.reported() != "" {
					time.Sleep(time.Millisecond)
				}
				cancel()
			}()
			_, err := p.setup(ctx, o, test.args...)
			testutil.CheckError(t, "setup", err, test.want)
			_, err = os.Stat(p.shimPath())
			if installed, configured := err == nil, p.Read(t) != "version = 2\n"; installed != test.installed || configured != test.configured {
				t.Errorf("installed %t, configured %t", installed, configured)
			}
		})
	}
}

// TestSetupCountsOfferedGPUs: a GPU that the advertiser does not offer is no reason to
// change the node.
func TestSetupCountsOfferedGPUs(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		detail, kind string
		want         error
	}{
		"offered":               {"linux: {deviceNodes: [/dev/null]}", "display", nil},
		"of a Windows node":     {"locationPath: PCIROOT(0)#PCI(1B00)", "display", errNoGPU},
		"of no resource's rule": {"linux: {deviceNodes: [/dev/null]}", "compute", errNoGPU},
		"of another node":       {"linux: {deviceNodes: [/dev/null, /nonexistent]}", "display", errNoGPU},
	} {
		p := newShimNode(t, "")
		o := newSetup(p.inventory(t, c.detail))
		o.gpuFlags.ConfigFile = filepath.Join(p.Root, "config.yaml")
		text := header + "Configuration\ninventory: " + o.gpuFlags.Inventory + "\nresources: [{name: example.com/gpu, match: {kind: " + c.kind + "}}]\n"
		testutil.WriteFile(t, o.gpuFlags.ConfigFile, text, 0o600)
		o.configure.stateDir, o.configure.shimDir = p.State, p.dir
		if err := o.checkGPU(t.Context()); !errors.Is(err, c.want) || c.want == nil && err != nil {
			t.Errorf("%s: error %v, want %v", name, err, c.want)
		}
		// While the configuration cannot be used, that in force counts.
		_, err := config.Compiler{File: o.gpuFlags.ConfigFile, StateDir: p.State, NodeOS: "linux"}.Apply()
		testutil.NoError(t, err)
		for _, text := range []string{text + "replicas: 0\n", text} { // invalid, and then with an inventory that anyone can write
			testutil.WriteFile(t, o.gpuFlags.ConfigFile, text, 0o600)
			if err := o.checkGPU(t.Context()); !errors.Is(err, c.want) || c.want == nil && err != nil {
				t.Errorf("%s, with a policy: error %v, want %v", name, err, c.want)
			}
			testutil.NoError(t, os.Chmod(o.gpuFlags.Inventory, 0o666))
		}
	}
}

// TestSetupChecksTheInventory: a file that anyone can write must not change a node.
func TestSetupChecksTheInventory(t *testing.T) {
	t.Parallel()
	p := newShimNode(t, "")
	o := newSetup(p.inventory(t, "linux: {deviceNodes: [/nonexistent]}"))
	o.configure.stateDir, o.configure.shimDir = p.State, p.dir
	if err := errors.Join(os.Chmod(o.gpuFlags.Inventory, 0o644), o.checkGPU(t.Context())); !errors.Is(err, errNoGPU) {
		t.Errorf("error %v, want %v", err, errNoGPU)
	}
	if err := errors.Join(os.Chmod(o.gpuFlags.Inventory, 0o666), o.checkGPU(t.Context())); !errors.Is(err, access.ErrUntrusted) {
		t.Errorf("an inventory that anyone can write: error %v", err)
	}
}
