package localgrpc

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/windows"
)

// shutDown does nothing: processes do not inherit l.
func shutDown(*net.UnixListener) error { return nil }

func checkRestricted(t *testing.T, path string) {
	t.Helper()
	descriptor, err := windows.GetNamedSecurityInfo(path, windows.SE_FILE_OBJECT, windows.DACL_SECURITY_INFORMATION)
	if err != nil {
		t.Fatal(err)
	}
	// Wine adds the owner.
	text := descriptor.String()
	for _, others := range []string{"WD", "BU", "AU"} {
		if strings.Contains(text, ";;;"+others+")") {
			t.Errorf("%s has %s", path, text)
		}
	}
	if !strings.Contains(text, ";;;BA)") && !strings.Contains(text, ";;;SY)") {
		t.Errorf("%s has %s", path, text)
	}
}

// TestRestrict runs where there are no Unix sockets, as under Wine.
func TestRestrict(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	open, err := windows.SecurityDescriptorFromString("D:P(A;;FA;;;WD)")
	if err != nil {
		t.Fatal(err)
	}
	list, _, err := open.DACL()
	if err != nil {
		t.Fatal(err)
	}
	if err := windows.SetNamedSecurityInfo(path, windows.SE_FILE_OBJECT, windows.DACL_SECURITY_INFORMATION|windows.PROTECTED_DACL_SECURITY_INFORMATION, nil, nil, list, nil); err != nil {
		t.Fatal(err)
	}
	if err := restrict(path); err != nil {
		t.Fatal(err)
	}
	checkRestricted(t, path)
}
