package access_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/windows"

	"github.com/directx-nri/directx-nri/internal/access"
	"github.com/directx-nri/directx-nri/internal/testutil"
)

func setDACL(t *testing.T, path, sddl string) {
	t.Helper()
	descriptor, err := windows.SecurityDescriptorFromString(sddl)
	testutil.NoError(t, err)
	list, _, err := descriptor.DACL()
	testutil.NoError(t, err)
	testutil.NoError(t, windows.SetNamedSecurityInfo(path, windows.SE_FILE_OBJECT, windows.DACL_SECURITY_INFORMATION|windows.PROTECTED_DACL_SECURITY_INFORMATION, nil, nil, list, nil))
}

func dacl(t *testing.T, path string) string {
	t.Helper()
	descriptor, err := windows.GetNamedSecurityInfo(path, windows.SE_FILE_OBJECT, windows.DACL_SECURITY_INFORMATION)
	testutil.NoError(t, err)
	return descriptor.String()
}

// ours grants access to the system's accounts and the calling user.
func ours(t *testing.T) string {
	t.Helper()
	user, err := windows.GetCurrentProcessToken().GetTokenUser()
	testutil.NoError(t, err)
	return "D:P(A;OICI;FA;;;SY)(A;OICI;FA;;;BA)(A;OICI;FA;;;" + user.User.Sid.String() + ")"
}

const everyoneReads, everyoneWrites, everyoneReplaces = "(A;;0x1200a9;;;WD)", "(A;;0x1201bf;;;WD)", "(A;;FA;;;WD)"

func TestCheckTrusted(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		above, dir, file string
		trusted          bool
	}{
		"restricted":                      {trusted: true},
		"everyone reads":                  {everyoneReads, everyoneReads, everyoneReads, true},
		"everyone writes to file":         {file: everyoneWrites},
		"everyone writes to directory":    {dir: everyoneWrites},
		"everyone replaces the directory": {above: everyoneReplaces},
		"everyone writes to content only": {dir: "(A;OICIIO;FA;;;WD)", trusted: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "above", "dir")
			path := filepath.Join(dir, "file")
			testutil.WriteFile(t, path, "", 0o600)
			setDACL(t, filepath.Dir(dir), ours(t)+test.above)
			setDACL(t, dir, ours(t)+test.dir)
			setDACL(t, path, ours(t)+test.file)
			if _, err := access.CheckTrusted("", path); errors.Is(err, access.ErrUntrusted) == test.trusted || test.trusted && err != nil {
				t.Error(err)
			}
			isTrusted := test.trusted || test.file != ""
			if err := access.CheckPrivate(dir); errors.Is(err, access.ErrUntrusted) == isTrusted || isTrusted && err != nil {
				t.Error(err)
			}
			testutil.NoError(t, access.CheckOwner(path))
		})
	}
}

func TestMakePrivateCreatesPrivateDirectories(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "a", "b")
	testutil.NoError(t, access.MakePrivate(dir))
	for _, path := range []string{dir, filepath.Dir(dir)} {
		if sddl := dacl(t, path); strings.Contains(sddl, ";;;WD)") || strings.Contains(sddl, ";;;BU)") {
			t.Errorf("%s: %s", path, sddl)
		}
	}
}

func TestMakePrivateLeavesExistingDirectories(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		sddl    string
		private bool
	}{"everyone reads": {everyoneReads, true}, "everyone writes": {everyoneWrites, false}} {
		dir := filepath.Join(t.TempDir(), "dir")
		testutil.NoError(t, os.Mkdir(dir, 0o700))
		setDACL(t, dir, ours(t)+test.sddl)
		before := dacl(t, dir)
		if err := access.MakePrivate(dir); errors.Is(err, access.ErrUntrusted) == test.private || test.private && err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if after := dacl(t, dir); after != before {
			t.Errorf("%s: access control list changed from %s to %s", name, before, after)
		}
	}
}

// TestCopy has rights that Wine can represent.
func TestCopy(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "dir")
	path := filepath.Join(dir, "file")
	testutil.NoError(t, os.Mkdir(dir, 0o700), os.WriteFile(path, nil, 0o600))
	setDACL(t, dir, ours(t))
	inherited := dacl(t, path)
	check := func(want string) {
		t.Helper()
		copied, err := os.CreateTemp(dir, "")
		testutil.NoError(t, err, access.Copy(path, copied), copied.Close())
		if got := dacl(t, copied.Name()); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	check(inherited)
	setDACL(t, path, ours(t)+everyoneWrites)
	set := dacl(t, path)
	if set == inherited {
		t.Error(set)
	}
	check(set)
}
