package diversion

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/windows/registry"

	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/internal/win32"
)

// runArgument makes a copy of this program run until its standard input ends.
const runArgument = "--run-in-tests"

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == runArgument {
		_, _ = io.Copy(io.Discard, os.Stdin)
		return
	}
	m.Run()
}

// start runs the program at path until end is called.
func start(t *testing.T, path string) (end func()) {
	t.Helper()
	command := exec.CommandContext(t.Context(), path, runArgument)
	stdin, err := command.StdinPipe()
	testutil.NoError(t, err, command.Start())
	return func() { testutil.NoError(t, stdin.Close(), command.Wait()) }
}

// TestProgramsRun: the diversion is made and undone while the programs run.
func TestProgramsRun(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	testutil.NoError(t, err)
	program, err := os.ReadFile(self)
	testutil.NoError(t, err)
	mark := []byte("our shim")
	n := newNode(t, string(program)+"runhcs", "")
	n.isOurs = func(path string) (bool, error) {
		data, err := os.ReadFile(path)
		return bytes.HasSuffix(data, mark), err
	}
	endFirst := start(t, n.place())
	n.install(string(program)+string(mark), true)
	n.checks(nil)
	endSecond := start(t, n.real())
	endOurs := start(t, n.place())
	n.install(string(program)+"new "+string(mark), true)
	n.checks(nil)
	endOurs()
	n.remove(true)
	n.checks(ErrNotDiverted)
	endFirst()
	endSecond()
	n.remove(false)
	if entries, err := os.ReadDir(n.dir); err != nil || len(entries) != 1 {
		t.Errorf("left: %v, %v", entries, err)
	}
}

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
