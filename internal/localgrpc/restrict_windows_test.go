package localgrpc

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/windows"

	"github.com/directx-nri/directx-nri/internal/access"
)

// shutDown does nothing: processes do not inherit l.
func shutDown(*net.UnixListener) error { return nil }

// needsUnixSockets skips the test where there are none.
func needsUnixSockets(t *testing.T) {
	t.Helper()
	socket, err := windows.Socket(windows.AF_UNIX, windows.SOCK_STREAM, 0)
	if errors.Is(err, windows.WSAEAFNOSUPPORT) {
		t.Skip("Wine has no Unix sockets")
	}
	if err := errors.Join(err, windows.Closesocket(socket)); err != nil {
		t.Fatal(err)
	}
}

// checkRestricted checks that no other account can write to the socket, which connecting takes.
func checkRestricted(t *testing.T, path string) {
	t.Helper()
	if err := access.CheckFile(path); err != nil {
		t.Error(err)
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
	if err := access.CheckFile(path); !errors.Is(err, access.ErrUntrusted) {
		t.Errorf("everyone can write to the file: %v", err)
	}
	if err := restrictAccess(path); err != nil {
		t.Fatal(err)
	}
	checkRestricted(t, path)
}
