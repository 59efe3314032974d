package localgrpc

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/windows"

	"github.com/directx-nri/directx-nri/internal/access"
	"github.com/directx-nri/directx-nri/internal/testutil"
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
	testutil.NoError(t, err, windows.Closesocket(socket))
}

// checkRestricted checks that no other account can write to the socket, which connecting takes.
func checkRestricted(t *testing.T, path string) {
	t.Helper()
	_, err := access.CheckTrusted("", path)
	testutil.NoError(t, err)
}

// TestRestrict runs where there are no Unix sockets, as under Wine.
func TestRestrict(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "file")
	testutil.NoError(t, os.WriteFile(path, nil, 0o666))
	open, err := windows.SecurityDescriptorFromString("D:P(A;;FA;;;WD)")
	testutil.NoError(t, err)
	list, _, err := open.DACL()
	testutil.NoError(t, err)
	const protected = windows.DACL_SECURITY_INFORMATION | windows.PROTECTED_DACL_SECURITY_INFORMATION
	testutil.NoError(t, windows.SetNamedSecurityInfo(path, windows.SE_FILE_OBJECT, protected, nil, nil, list, nil))
	if _, err := access.CheckTrusted("", path); !errors.Is(err, access.ErrUntrusted) {
		t.Errorf("everyone can write to the file: %v", err)
	}
	testutil.NoError(t, restrictAccess(path))
	checkRestricted(t, path)
}
