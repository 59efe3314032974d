package diversion

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/windows/registry"

	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/internal/win32"
)

func TestRenameAtBoot(t *testing.T) {
	t.Parallel()
	key, err := registry.OpenKey(registry.LOCAL_MACHINE, `SYSTEM\CurrentControlSet\Control\Session Manager`, registry.QUERY_VALUE)
	testutil.NoError(t, err)
	defer key.Close()
	pending := func() string {
		list, _, _ := key.GetStringsValue("PendingFileRenameOperations")
		return strings.Join(list, "|")
	}
	from, other := filepath.Join(t.TempDir(), "new.exe"), filepath.Join(t.TempDir(), "other.exe")
	for _, path := range []string{from, other} {
		testutil.WriteFile(t, path, "", 0o600)
		_, err := renameAtBoot(path, path+".to")
		testutil.NoError(t, err)
	}
	if list := pending(); !strings.Contains(list, from) || !strings.Contains(list, from+".to") || !strings.Contains(list, other) {
		t.Errorf("pending: %s", list)
	}
	for range 2 {
		testutil.NoError(t, win32.CancelRenameAtBoot(from))
	}
	if list := pending(); strings.Contains(list, from) || !strings.Contains(list, other+".to") {
		t.Errorf("after one was canceled: %s", list)
	}
	testutil.NoError(t, win32.CancelRenameAtBoot(other))
}

func TestProcesses(t *testing.T) {
	t.Parallel()
	processes, err := win32.Processes()
	testutil.NoError(t, err)
	i := slices.IndexFunc(processes, func(p win32.Process) bool { return p.ID == uint32(os.Getpid()) })
	if i < 0 || processes[i].Parent != uint32(os.Getppid()) || !strings.EqualFold(processes[i].Name, filepath.Base(os.Args[0])) {
		t.Fatalf("this process: %+v", processes)
	}
	self, err := os.Executable()
	testutil.NoError(t, err)
	if path, err := win32.ProcessPath(processes[i].ID); err != nil || !strings.EqualFold(path, self) {
		t.Errorf("path %s, %v, want %s", path, err, self)
	}
}
