//go:build unix

package main

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/directx-nri/directx-nri/cmd/dxctl/gpus"
	"github.com/directx-nri/directx-nri/discovery/node"
	"github.com/directx-nri/directx-nri/internal/durable"
	"github.com/directx-nri/directx-nri/internal/readiness"
	"github.com/directx-nri/directx-nri/internal/shimfile"
	"github.com/directx-nri/directx-nri/internal/testutil"
)

// TestSetup changes what a node has while dxctl waits.
func TestSetup(t *testing.T) {
	t.Parallel()
	inventory := func(node string) string {
		return "apiVersion: directx.microsoft.com/v1alpha1\nkind: Inventory\ndevices: [{instanceID: 'PCI\\1', driver: {version: '1'}, display: true, linux: {deviceNodes: [" + node + "]}}]\n"
	}
	for name, appear := range map[string]string{
		"a device node":     "root/dev/dxg",
		"configured before": "state/" + journalName,
		"installed before":  "bin/" + shimfile.Name(),
		"its own file":      "root/dev/dxg",
		"no inventory":      "root/dev/dxg",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			write := func(name, text string) {
				path := filepath.Join(dir, name)
				if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
					t.Error(err)
				}
				if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
					t.Error(err)
				}
			}
			write("inventory.yaml", inventory("/dev/dxg"))
			o := setupOptions{
				Node:    gpus.Node{StateDir: filepath.Join(dir, "state"), Inventory: filepath.Join(dir, "inventory.yaml")},
				shimDir: filepath.Join(dir, "bin"), hostRoot: filepath.Join(dir, "root"), reportFile: filepath.Join(dir, "report"), interval: time.Millisecond,
				programs: func(string) []string { return nil },
			}
			reason := errNoGPU.Error()
			switch name {
			case "no inventory":
				o.Inventory, reason = "", node.ErrNoInventory.Error()
			case "its own file":
				o.Inventory, o.defaultConfig = "", filepath.Join(dir, "config.yaml")
				write("config.yaml", "apiVersion: directx.microsoft.com/v1alpha1\nkind: Configuration\ninventory: "+filepath.Join(dir, "inventory.yaml")+"\n")
			}
			steps := make(chan string, 2)
			step := func(name string, err error) *cobra.Command {
				return &cobra.Command{Use: name, RunE: func(*cobra.Command, []string) error { steps <- name; return err }}
			}
			if err := readiness.CheckSetup(o.reportFile); !errors.Is(err, readiness.ErrNotSetUp) {
				t.Errorf("before: %v", err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			var out strings.Builder
			go func() { ended <- o.run(ctx, io.Discard, &out, []*cobra.Command{step("early", nil)}) }()
			testutil.Eventually(t, "report", func() bool { return errors.Is(readiness.CheckSetup(o.reportFile), readiness.ErrNoGPU) })
			time.Sleep(50 * o.interval)
			cancel()
			err := <-ended
			if err != nil || len(steps) > 0 || strings.Count(out.String(), "\n") != 1 || !strings.Contains(out.String(), reason) {
				t.Errorf("%v, %d steps: %s", err, len(steps), out.String())
			}
			if err := readiness.CheckSetup(o.reportFile); !errors.Is(err, readiness.ErrNoGPU) || !strings.Contains(err.Error(), reason) {
				t.Errorf("without a GPU: %v", err)
			}

			ctx, cancel = context.WithCancel(t.Context())
			go func() {
				ended <- o.run(ctx, io.Discard, io.Discard, []*cobra.Command{step("install", nil), step("configure", nil)})
			}()
			time.Sleep(10 * time.Millisecond)
			write(appear, "")
			testutil.Eventually(t, "the node is set up", func() bool { return readiness.CheckSetup(o.reportFile) == nil })
			cancel()
			if err := <-ended; err != nil || <-steps != "install" || <-steps != "configure" {
				t.Errorf("%v, or other steps", err)
			}
			failure := errors.New("no")
			if err := o.run(t.Context(), io.Discard, io.Discard, []*cobra.Command{step("install", failure), step("configure", nil)}); !errors.Is(err, failure) || len(steps) != 1 {
				t.Errorf("%v, %d steps", err, len(steps))
			}
		})
	}
}

func TestSetupSteps(t *testing.T) {
	t.Parallel()
	steps, err := parseSteps([]string{"install", "--to=/a", "--", "configure", "--restart"})
	if err != nil || len(steps) != 2 || steps[0].Flag("to").Value.String() != "/a" || steps[1].Flag("restart").Value.String() != "true" {
		t.Errorf("%v, %v", steps, err)
	}
	for _, wrong := range [][]string{{"--"}, {"instal"}, {"install", "--no-such-flag"}, {"install", "argument"}} {
		if steps, err := parseSteps(wrong); err == nil {
			t.Errorf("%q: %v", wrong, steps)
		}
	}
}

// TestSetupChecksTheInventory: a file that anyone can write must not make a node change.
func TestSetupChecksTheInventory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	o := setupOptions{Node: gpus.Node{StateDir: dir, Inventory: filepath.Join(dir, "inventory.yaml")}, hostRoot: dir}
	if err := os.WriteFile(o.Inventory, []byte("apiVersion: directx.microsoft.com/v1alpha1\nkind: Inventory\ndevices: []\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Chmod(o.Inventory, 0o644), o.checkGPU(t.Context())); !errors.Is(err, errNoGPU) {
		t.Errorf("error %v, want %v", err, errNoGPU)
	}
	var access *durable.AccessError
	if err := errors.Join(os.Chmod(o.Inventory, 0o666), o.checkGPU(t.Context())); !errors.As(err, &access) {
		t.Errorf("an inventory that anyone can write: error %v", err)
	}
}

// TestSetupCountsOfferedGPUs: a GPU that the advertiser does not offer is no reason to
// change the node.
func TestSetupCountsOfferedGPUs(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		device, kind string
		want         error
	}{
		"offered":               {"linux: {deviceNodes: [/dev/null]}", "display", nil},
		"of a Windows node":     {"locationPath: PCIROOT(0)#PCI(1B00)", "display", errNoGPU},
		"of no resource's rule": {"linux: {deviceNodes: [/dev/null]}", "compute", errNoGPU},
		"of another node":       {"linux: {deviceNodes: [/dev/null, /nonexistent]}", "display", errNoGPU},
	} {
		dir := t.TempDir()
		o := setupOptions{Node: gpus.Node{StateDir: dir, Inventory: filepath.Join(dir, "inventory.yaml"), ConfigFile: filepath.Join(dir, "config.yaml")}}
		const header = "apiVersion: directx.microsoft.com/v1alpha1\nkind: "
		err := errors.Join(
			os.WriteFile(o.Inventory, []byte(header+"Inventory\ndevices: [{instanceID: 'PCI\\1', driver: {version: '1'}, display: true, "+c.device+"}]\n"), 0o600),
			os.WriteFile(o.ConfigFile, []byte(header+"Configuration\nresources: [{name: example.com/gpu, match: {kind: "+c.kind+"}}]\n"), 0o600),
			o.checkGPU(t.Context()),
		)
		if !errors.Is(err, c.want) || c.want == nil && err != nil {
			t.Errorf("%s: error %v, want %v", name, err, c.want)
		}
	}
}

// TestSetupRefusesAKubelet that would not start again after containerd's restart.
func TestSetupRefusesAKubelet(t *testing.T) {
	t.Parallel()
	for version, refused := range map[string]bool{
		"Kubernetes v1.31.0": true, "Kubernetes v1.31.0+rke2r1": true, "Kubernetes v1.31.0-eks-1a2b3c4": true,
		"Kubernetes v1.31.1": false, "Kubernetes v1.31.10": false, "": false,
	} {
		dir := t.TempDir()
		kubelet := filepath.Join(dir, "kubelet.exe")
		syscall.ForkLock.RLock() // So that no child of another test has the file open.
		err := os.WriteFile(kubelet, []byte("#!/bin/sh\n[ \"$1\" = --version ] && echo '"+version+"'\n"), 0o700)
		syscall.ForkLock.RUnlock()
		o := setupOptions{
			Node: gpus.Node{StateDir: filepath.Join(dir, "state")}, shimDir: filepath.Join(dir, "bin"), hostRoot: filepath.Join(dir, "root"),
			programs: func(name string) []string {
				return []string{filepath.Join(dir, "none", name), filepath.Join(dir, name)}
			},
		}
		ran := false
		step := &cobra.Command{Use: "install", RunE: func(*cobra.Command, []string) error { ran = true; return io.EOF }}
		if err := errors.Join(err, os.MkdirAll(filepath.Join(o.hostRoot, "dev/dxg"), 0o700)); err != nil {
			t.Fatal(err)
		}
		check := func(when string, refused bool) {
			t.Helper()
			if err := o.run(t.Context(), io.Discard, io.Discard, []*cobra.Command{step}); ran == refused || refused != (err != nil && strings.Contains(err.Error(), "nothing was changed: "+kubelet+" is of Kubernetes 1.31.0")) {
				t.Errorf("%q, %s: %v, set up: %t", version, when, err, ran)
			}
		}
		check("first", refused)
		if err := errors.Join(os.Mkdir(o.shimDir, 0o700), os.WriteFile(filepath.Join(o.shimDir, shimfile.Name()), nil, 0o600)); err != nil {
			t.Fatal(err)
		}
		check("set up before", false)
	}
}
