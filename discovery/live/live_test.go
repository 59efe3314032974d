package live

import (
	"errors"
	"runtime"
	"testing"

	"directx-nri/discovery/inventory"
	"directx-nri/internal/testutil"
)

func TestOpen(t *testing.T) {
	t.Parallel()
	source, err := Open("/nowhere/inventory.yaml", testutil.Quiet())
	if _, isInventory := source.(*inventory.Source); err != nil || !isInventory {
		t.Errorf("with an inventory: %T, error %v", source, err)
	}
	source, err = Open("", testutil.Quiet())
	if runtime.GOOS == "windows" {
		if _, isInventory := source.(*inventory.Source); err != nil || source == nil || isInventory {
			t.Errorf("without an inventory: %T, error %v", source, err)
		}
	} else if !errors.Is(err, ErrNoInventory) {
		t.Errorf("without an inventory: %T, error %v", source, err)
	}
}
