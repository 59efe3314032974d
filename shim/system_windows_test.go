package shim

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/windows"

	"github.com/directx-nri/directx-nri/internal/durable"
	"github.com/directx-nri/directx-nri/internal/testutil"
)

// TestCtrlCSparesContainers: a Ctrl-C to the console of containerd does not reach the real shim.
func TestCtrlCSparesContainers(t *testing.T) {
	t.Parallel()
	command := exec.Command(os.Args[0])
	command.Env = append(os.Environ(), consoleMode+"=containerd")
	command.SysProcAttr = &syscall.SysProcAttr{CreationFlags: windows.CREATE_NEW_CONSOLE}
	out, err := command.Output()
	if err != nil || strings.TrimSpace(string(out)) != "same group ended" {
		t.Errorf("%v, %q", err, out)
	}
}

// TestReplaceWaitsForAScanner has a program keep config.json open, as virus
// scanners do with a new file, in a way that prevents its replacement.
func TestReplaceWaitsForAScanner(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), specName)
	testutil.WriteFile(t, path, "before", 0o600)
	name, err := windows.UTF16PtrFromString(path)
	testutil.NoError(t, err)
	scanner, err := windows.CreateFile(name, windows.GENERIC_READ, windows.FILE_SHARE_READ|windows.FILE_SHARE_WRITE, nil, windows.OPEN_EXISTING, 0, 0)
	testutil.NoError(t, err)
	closed := make(chan error)
	go func() {
		time.Sleep(50 * time.Millisecond)
		closed <- windows.CloseHandle(scanner)
	}()
	err = durable.ReplaceUnsynced(path, []byte("after"), 0o600)
	if closeErr := <-closed; closeErr != nil {
		t.Fatal(closeErr)
	}
	if data, readErr := os.ReadFile(path); err != nil || string(data) != "after" {
		t.Errorf("%v, %q, %v", err, data, readErr)
	}
}
