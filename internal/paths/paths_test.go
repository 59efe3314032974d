package paths

import (
	"path/filepath"
	"testing"
)

func TestStateDirVariable(t *testing.T) {
	t.Setenv(StateDirVariable, "")
	usual := Default()
	if !filepath.IsAbs(usual.State) {
		t.Errorf("state directory %q", usual.State)
	}
	t.Setenv(StateDirVariable, "elsewhere")
	want := usual
	want.State = "elsewhere"
	if got := Default(); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}
