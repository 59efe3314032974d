package trusted

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/windows"
)

func setDACL(t *testing.T, path, sddl string) {
	t.Helper()
	descriptor, err := windows.SecurityDescriptorFromString(sddl)
	if err != nil {
		t.Fatal(err)
	}
	list, _, err := descriptor.DACL()
	if err != nil {
		t.Fatal(err)
	}
	if err := windows.SetNamedSecurityInfo(path, windows.SE_FILE_OBJECT, windows.DACL_SECURITY_INFORMATION|windows.PROTECTED_DACL_SECURITY_INFORMATION, nil, nil, list, nil); err != nil {
		t.Fatal(err)
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	user, err := windows.GetCurrentProcessToken().GetTokenUser()
	if err != nil {
		t.Fatal(err)
	}
	ours := "D:P(A;OICI;FA;;;SY)(A;OICI;FA;;;BA)(A;OICI;FA;;;" + user.User.Sid.String() + ")"
	const reads, writes = "(A;;0x1200a9;;;WD)", "(A;;0x1201bf;;;WD)"
	for name, test := range map[string]struct {
		folder, file string
		trusted      bool
	}{
		"closed":                      {"", "", true},
		"everybody reads":             {reads, reads, true},
		"everybody puts files there":  {writes, "", false},
		"everybody writes the file":   {"", writes, false},
		"only what is in it, if ever": {"(A;OICIIO;FA;;;WD)", "", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			folder := filepath.Join(t.TempDir(), "folder")
			path := filepath.Join(folder, "file")
			if err := os.Mkdir(folder, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			setDACL(t, folder, ours+test.folder)
			setDACL(t, path, ours+test.file)
			if err := Check(path); errors.Is(err, ErrUntrusted) == test.trusted || test.trusted && err != nil {
				t.Error(err)
			}
			// Whose the file is does not change with who else has rights.
			if err := CheckOwner(path); err != nil {
				t.Error(err)
			}
		})
	}
}
