package win32

import (
	"slices"
	"testing"
)

func TestWithoutRename(t *testing.T) {
	t.Parallel()
	// A file that is deleted at boot has no new path; ! replaces an existing file.
	others := []string{`\??\C:\a`, ``, `\??\C:\b`, `!\??\C:\new.exe`, `\??\C:\c`, `\??\C:\d`}
	list := append(slices.Clone(others[:2]), `\??\C:\Dir\new.exe`, `\??\C:\Dir\shim.exe`)
	list = append(list, others[2:]...)
	if got := withoutRename(list, `c:\dir\NEW.exe`); !slices.Equal(got, others) {
		t.Errorf("%q", got)
	}
	if got := withoutRename(others[:3], `C:\new.exe`); !slices.Equal(got, others[:3]) {
		t.Errorf("an odd number: %q", got)
	}
	if got := withoutRename(list[2:4], `C:\Dir\new.exe`); len(got) != 0 {
		t.Errorf("%q", got)
	}
}
