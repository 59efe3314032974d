package runflags

import (
	"slices"
	"testing"

	"golang.org/x/sys/windows"
)

// TestProcessWord has Windows itself take command lines apart.
func TestProcessWord(t *testing.T) {
	t.Parallel()
	for _, arg := range hard {
		// The first one is the program, which is read by other rules.
		got, err := windows.DecomposeCommandLine("x " + processWord(arg) + " y")
		if want := []string{"x", arg, "y"}; err != nil || !slices.Equal(got, want) {
			t.Errorf("%s is read as %q, %v; want %q", processWord(arg), got, err, want)
		}
	}
}
