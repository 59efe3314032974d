package terminal

import (
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// openTerminal returns a terminal of that many columns.
func openTerminal(t *testing.T, columns uint16) *os.File {
	t.Helper()
	other, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("no terminal can be made here: %v", err)
	}
	t.Cleanup(func() { _ = other.Close() })
	if err := unix.IoctlSetPointerInt(int(other.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(int(other.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	if err := unix.IoctlSetWinsize(int(file.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: columns}); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestATerminal(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		columns uint16
		noColor string
		want    Terminal
	}{
		"wide":        {132, "", Terminal{Width: 132, Color: true}},
		"NO_COLOR":    {40, "1", Terminal{Width: 40}},
		"of no width": {0, "", Terminal{Width: usualWidth, Color: true}},
	} {
		got := Of(openTerminal(t, test.columns), func(name string) string {
			if name == "NO_COLOR" {
				return test.noColor
			}
			return ""
		})
		if got != test.want {
			t.Errorf("%s: %+v, want %+v", name, got, test.want)
		}
	}
}
