//go:build unix

package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/directx-nri/directx-nri/discovery/node"
	"github.com/directx-nri/directx-nri/internal/access"
	"github.com/directx-nri/directx-nri/internal/durable"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/testutil"
)

func TestCheckVolume(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "config.yaml")
	testutil.WriteFile(t, path, head, 0o600)
	mounted := func(readOnly bool) func(*os.File) bool { return func(*os.File) bool { return readOnly } }
	for name, test := range map[string]struct {
		dir, file os.FileMode
		readOnly  func(*os.File) bool
		want      error
	}{
		"a private directory":               {0o700, 0o600, mounted(false), nil},
		"a ConfigMap":                       {0o777, 0o644, mounted(true), nil},
		"a directory that others can write": {0o777, 0o600, mounted(false), access.ErrNotPrivate},
		"a file that others can write":      {0o700, 0o666, mounted(false), access.ErrUntrusted},
		"such a file in a read-only volume": {0o777, 0o666, mounted(true), access.ErrUntrusted},
	} {
		testutil.NoError(t, os.Chmod(path, test.file), os.Chmod(filepath.Dir(path), test.dir))
		f := openFile(t, path)
		err := checkVolumeBy(f, "/etc", test.readOnly)
		if !errors.Is(err, test.want) {
			t.Errorf("%s: error %v, want %v", name, err, test.want)
		}
		// A pod has the node's own directory read-only, too. Its access must be corrected.
		err = checkVolumeBy(f, filepath.Dir(path), test.readOnly)
		want := "'chmod "
		if test.dir == 0o700 && test.want == nil {
			want = ""
		}
		testutil.CheckError(t, name+", in the usual directory", err, want)
	}
	if isReadOnly(openFile(t, path)) {
		t.Error("the test's directory is read-only")
	}
}

func openFile(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.Open(path)
	testutil.NoError(t, err)
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// TestCheckVolumeOfReplacedFile: the file that is read is checked, not a later one of its name.
func TestCheckVolumeOfReplacedFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "config.yaml")
	testutil.WriteFile(t, path, head, 0o600)
	f := openFile(t, path)
	testutil.NoError(t, os.Chmod(path, 0o666), os.Remove(path))
	testutil.WriteFile(t, path, head, 0o600)
	if err := checkVolume(f, "/etc"); !errors.Is(err, access.ErrUntrusted) {
		t.Errorf("error %v, want %v", err, access.ErrUntrusted)
	}
}

// TestCompileChecksWhoCanWrite: config.yaml and the inventory alike.
func TestCompileChecksWhoCanWrite(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file, inventory := filepath.Join(dir, "config.yaml"), filepath.Join(dir, "gpus.yaml")
	testutil.WriteFile(t, file, head+"inventory: "+inventory+"\n", 0o600)
	testutil.WriteFile(t, inventory, device("display: true"), 0o600)
	c := Compiler{File: file, StateDir: "/x", NodeOS: "linux"}
	_, err := c.Compile()
	testutil.NoError(t, err)
	for _, path := range []string{file, inventory} {
		testutil.NoError(t, os.Chmod(path, 0o666))
		if _, err := c.Compile(); !errors.Is(err, access.ErrUntrusted) || !strings.Contains(err.Error(), path) {
			t.Errorf("error %v, want %v of %s", err, access.ErrUntrusted, path)
		}
		testutil.NoError(t, os.Chmod(path, 0o600))
	}
}

// Opening a named pipe waits for a writer, which no signal ends.
func TestCompileRefusesNamedPipe(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "config.yaml")
	testutil.NoError(t, syscall.Mkfifo(path, 0o600))
	_, err := Compiler{File: path, InspectOnly: true}.Compile()
	testutil.CheckError(t, "a named pipe", err, "not a regular file")
}

// watched is a node whose files a test changes while [Compiler.Watch] runs. The clock is the
// test's own.
type watched struct {
	t        *testing.T
	c        Compiler
	inForce  Compiled
	reports  chan error
	returned chan bool
}

// watch starts with the configuration that c compiles, as an earlier run has installed it.
func watch(t *testing.T, c Compiler) *watched {
	compiled, err := c.Apply()
	testutil.NoError(t, err)
	w := &watched{t, c, compiled, make(chan error, 1000), make(chan bool, 1)}
	go w.run()
	return w
}

func (w *watched) run() {
	var err error
	w.inForce, err = w.c.Watch(w.t.Context(), w.inForce, func(err error) { w.reports <- err })
	w.returned <- err == nil
}

// wait checks what has been reported after d, since the last call: errors with the text want,
// or none; and whether Watch has returned with another policy, which the next call uses.
func (w *watched) wait(d time.Duration, want string, wantNext bool) {
	w.t.Helper()
	time.Sleep(d)
	synctest.Wait()
	var got error
	for len(w.reports) > 0 {
		got = errors.Join(got, <-w.reports)
	}
	testutil.CheckError(w.t, "reported", got, want)
	next := len(w.returned) > 0
	installed, err := policy.Read(w.c.StateDir)
	if err == nil && installed.UseInventory {
		_, err = node.CompiledInventory(w.c.StateDir).Devices(w.t.Context())
	}
	if next != wantNext || err != nil || !durable.Exists(policy.Path(w.c.StateDir)) {
		w.t.Errorf("a new policy is in force: %t; the installed one: %v", next, err)
	}
	if next {
		<-w.returned
		go w.run()
	}
}

// TestWatch changes files as an editor and as the kubelet do.
func TestWatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir, inventoryDir := t.TempDir(), t.TempDir()
		stateDir, file, inventory := filepath.Join(dir, "state"), filepath.Join(dir, "config.yaml"), filepath.Join(inventoryDir, "gpus.yaml")
		for version, text := range map[string]string{"..1": "replicas: 1", "..2": "replicas: 2", "..bad": "replicas: 0", "..comment": "replicas: 2 # comment"} {
			testutil.WriteFile(t, filepath.Join(dir, version, "config.yaml"), head+text+"\ninventory: "+inventory+"\n", 0o600)
		}
		link := func(version string) {
			t.Helper()
			temp := filepath.Join(dir, "..data_tmp")
			testutil.NoError(t, os.Symlink(version, temp), os.Rename(temp, filepath.Join(dir, "..data")))
		}
		link("..1")
		testutil.NoError(t, os.Symlink(filepath.Join("..data", "config.yaml"), file))
		testutil.WriteFile(t, inventory, device("display: true"), 0o600)
		w := watch(t, Compiler{File: file, StateDir: stateDir, NodeOS: "linux"})
		w.wait(2*pollInterval, "", false)
		link("..2")
		w.wait(2*pollInterval, "", true)
		w.wait(2*pollInterval, "", false)
		testutil.WriteFile(t, inventory, device("compute: true"), 0o600)
		w.wait(2*pollInterval, "", true)
		if c := w.inForce; c.Policy.Resources[0].Replicas != 2 || len(c.Devices) != 1 || !c.Devices[0].SupportsCompute {
			t.Errorf("%+v", c)
		}
		// A policy or compiled inventory that is lost is written again.
		for _, path := range []string{policy.Path(stateDir), node.CompiledInventory(stateDir).Path()} {
			testutil.NoError(t, os.Remove(path))
			w.wait(compileInterval+pollInterval, "", false)
		}
		// What is invalid changes nothing, nor does another comment.
		link("..bad")
		w.wait(2*pollInterval, "replicas: minimum", false)
		link("..comment")
		w.wait(2*pollInterval, "", false)
	})
}

// TestWatchTiming: a file that appears is compiled when it is whole, and what was refused, or
// is lost, is tried again without a change of a file.
func TestWatchTiming(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		file, stateDir := filepath.Join(dir, "config.yaml"), filepath.Join(dir, "state")
		inventory := filepath.Join(dir, "gpus.yaml")
		w := watch(t, Compiler{File: file, StateDir: stateDir, NodeOS: "linux"})
		w.wait(pollInterval/2, "", false)
		for range 2 * compileInterval / pollInterval { // It grows, and no part of it is valid.
			testutil.WriteFile(t, file, "# "+strings.Repeat("x", time.Now().Second()*1000+time.Now().Nanosecond()/1e6)+"\nreplicas: 0", 0o600)
			w.wait(pollInterval, "", false)
		}
		testutil.WriteFile(t, file, head+"inventory: "+inventory+"\n", 0o600)
		w.wait(2*pollInterval, "gpus.yaml", false)
		w.wait(3*compileInterval, "gpus.yaml", false)
		testutil.WriteFile(t, inventory, "apiVersion: directx.microsoft.com/v1alpha1\nkind: Inventory\ndevices: []\n", 0o600)
		w.wait(compileInterval+pollInterval, "", true)
		if !w.inForce.Policy.UseInventory {
			t.Errorf("%+v", w.inForce.Policy)
		}
	})
}
