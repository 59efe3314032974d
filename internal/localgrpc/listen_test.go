package localgrpc

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/directx-nri/directx-nri/internal/testutil"
)

// abandon closes l and leaves its file, as a process that is killed does.
func abandon(t *testing.T, l *net.UnixListener) {
	t.Helper()
	l.SetUnlinkOnClose(false)
	if err := errors.Join(shutDown(l), l.Close()); err != nil {
		t.Fatal(err)
	}
}

func TestListen(t *testing.T) {
	t.Parallel()
	needsUnixSockets(t)
	for _, test := range []struct {
		name    string
		prepare func(t *testing.T, path string)
		wantErr string
	}{
		{name: "no file", prepare: func(*testing.T, string) {}},
		{name: "of a killed process", prepare: func(t *testing.T, path string) {
			l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
			if err != nil {
				t.Fatal(err)
			}
			abandon(t, l)
		}},
		{name: "of a live process", prepare: func(t *testing.T, path string) {
			l, err := net.Listen("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = l.Close() })
		}, wantErr: ErrInUse.Error()},
		{name: "an ordinary file", prepare: func(t *testing.T, path string) {
			if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
				t.Fatal(err)
			}
		}, wantErr: "move it away"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(testutil.ShortDir(t), "s.sock")
			test.prepare(t, path)
			before, _ := os.Lstat(path)
			l, err := Listen(t.Context(), path)
			if test.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), test.wantErr) || !strings.Contains(err.Error(), path) {
					t.Errorf("error %v, want one with %q and the path", err, test.wantErr)
				}
				if after, err := os.Lstat(path); err != nil || !os.SameFile(before, after) {
					t.Errorf("the file was changed: %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			checkRestricted(t, path)
			if !l.Intact() {
				t.Error("a new listener is not intact")
			}
			if err := l.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
			if err := l.Close(); err != nil {
				t.Errorf("second Close: %v", err)
			}
			if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the socket still exists: %v", err)
			}
		})
	}
}

func TestListenOnTooLongPath(t *testing.T) {
	t.Parallel()
	_, err := Listen(t.Context(), filepath.Join(t.TempDir(), strings.Repeat("x", 108)))
	if err == nil || !strings.Contains(err.Error(), "shorter directory") {
		t.Errorf("error %v has no remedy", err)
	}
}

func TestCloseKeepsSocketOfOtherProcess(t *testing.T) {
	t.Parallel()
	needsUnixSockets(t)
	path := filepath.Join(testutil.ShortDir(t), "s.sock")
	if (Identity{}).Same(Identity{}) {
		t.Error("two zero identities are the same")
	}
	ours, err := Listen(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if ours.Intact() {
		t.Error("intact without its file")
	}
	theirs, err := Listen(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = theirs.Close() }()
	if ours.Intact() {
		t.Error("intact with another listener's file")
	}
	if err := ours.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	if !theirs.Intact() {
		t.Error("the other listener's socket was removed")
	}
}
