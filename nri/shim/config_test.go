//go:build linux

package shim

import (
	"errors"
	"os"
	"strings"
	"testing"

	"directx-nri/internal/config"
)

// keepStateHere has the shim log here also when its configuration file cannot be
// used and so names no folder.
func (b *bed) keepStateHere() { b.env = append(b.env, "DIRECTX_NRI_STATE_DIR="+b.path("state")) }

// TestLastGoodConfiguration has a configuration file turn bad: containers that ask
// for a GPU get it by the file's last good copy.
func TestLastGoodConfiguration(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	if err := config.KeepLastGood(b.path("config.yaml")); err != nil {
		t.Fatal(err)
	}
	b.write("config.yaml", b.read("config.yaml")+"replicas: 0\n")
	b.started(b.start(standalone("DIRECTX_VISIBLE_DEVICES=all")))
	b.hasGPU()
	if log := b.read("state/shim.log"); !strings.Contains(log, "last good copy is in force") || !strings.Contains(log, "replicas: 0 is not possible") {
		t.Errorf("the log does not tell: %s", log)
	}
	b.keepStateHere()
	// A copy that others can write is none.
	if err := os.Chmod(b.path("config.yaml"+config.LastGood), 0o666); err != nil {
		t.Fatal(err)
	}
	b.refused(b.start(standalone("DIRECTX_VISIBLE_DEVICES=all")), "replicas: 0 is not possible")
	b.started(b.start(standalone()))
}

// TestVariablesOfTheShim are those of containerd's environment.
func TestVariablesOfTheShim(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	inventory := b.path("other.yaml")
	if err := os.Rename(b.path("gpus.yaml"), inventory); err != nil {
		t.Fatal(err)
	}
	b.refused(b.start(standalone("DIRECTX_VISIBLE_DEVICES=all")), "gpus.yaml")
	b.env = append(b.env, "DIRECTX_NRI_INVENTORY="+inventory)
	b.started(b.start(standalone("DIRECTX_VISIBLE_DEVICES=all")))
	b.hasGPU()
	b.env = append(b.env, "DIRECTX_NRI_LOG_LEVEL=loud")
	b.keepStateHere()
	b.refused(b.start(standalone("DIRECTX_VISIBLE_DEVICES=all")), `DIRECTX_NRI_LOG_LEVEL: "loud" is none of`)
	b.started(b.start(standalone()))
}

// TestRealShimByVariable finds the real shim with a file that cannot be used.
func TestRealShimByVariable(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	if err := errors.Join(os.Remove(b.path("bin/"+realName)), os.Mkdir(b.path("other"), 0o700)); err != nil {
		t.Fatal(err)
	}
	b.write("config.yaml", "bad")
	b.keepStateHere()
	b.env = append(b.env, "DIRECTX_NRI_SHIM_RUNTIME="+b.program("other/"+realName))
	b.started(b.start(standalone()))
}
