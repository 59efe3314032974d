//go:build unix

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"directx-nri/internal/shimfile"
)

// TestWait changes what a node has while dxctl waits.
func TestWait(t *testing.T) {
	t.Parallel()
	inventory := func(node string) string {
		return "apiVersion: directx.microsoft.com/v1alpha1\nkind: Inventory\ndevices: [{instanceID: 'PCI\\1', driver: {version: '1'}, display: true, linux: {deviceNodes: [" + node + "]}}]\n"
	}
	for name, appear := range map[string]string{
		"a device node":     "root/dev/dxg",
		"configured before": "state/" + journalName,
		"installed before":  "bin/" + shimfile.Name(),
		"its own file":      "root/dev/dxg",
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
			o := waitOptions{
				nodeConfig: nodeConfig{stateDir: filepath.Join(dir, "state"), inventory: filepath.Join(dir, "inventory.yaml")},
				shimDir:    filepath.Join(dir, "bin"), hostRoot: filepath.Join(dir, "root"), interval: time.Millisecond,
			}
			if name == "its own file" {
				o.inventory, o.defaultConfig = "", filepath.Join(dir, "config.yaml")
				write("config.yaml", "apiVersion: directx.microsoft.com/v1alpha1\nkind: Configuration\ninventory: "+filepath.Join(dir, "inventory.yaml")+"\n")
			}
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			defer cancel()
			var out strings.Builder
			if err := o.run(ctx, &out); err == nil || strings.Count(out.String(), "\n") != 1 || !strings.Contains(out.String(), errNoGPU.Error()) {
				t.Errorf("%v: %s", err, out.String())
			}
			ended := make(chan error, 1)
			go func() { ended <- o.run(t.Context(), io.Discard) }()
			time.Sleep(10 * time.Millisecond)
			write(appear, "")
			if err := <-ended; err != nil {
				t.Error(fmt.Errorf("it does not end: %w", err))
			}
		})
	}
}
