package node

import (
	"errors"
	"runtime"
	"testing"

	"github.com/directx-nri/directx-nri/internal/testutil"
)

func TestOpen(t *testing.T) {
	t.Parallel()
	for _, inventory := range []bool{true, false} {
		source, err := Open(Options{UseInventory: inventory, StateDir: t.TempDir(), HostRoot: "/nonexistent", Log: testutil.Quiet()})
		if !inventory && runtime.GOOS != "windows" {
			if !errors.Is(err, ErrNoSource) {
				t.Errorf("no inventory: %T, %v", source, err)
			}
			continue
		}
		if _, ok := source.(DeviceList); err != nil || ok != inventory {
			t.Errorf("inventory %t: %T, %v", inventory, source, err)
		}
	}
}
