//go:build unix

package config

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/directx-nri/directx-nri/discovery/node"
	"github.com/directx-nri/directx-nri/internal/durable"
	"github.com/directx-nri/directx-nri/internal/policy"
)

func TestCheckVolume(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "config.yaml")
	write(t, path, head)
	mounted := func(readOnly bool) func(*os.File) bool { return func(*os.File) bool { return readOnly } }
	for name, test := range map[string]struct {
		dir, file os.FileMode
		readOnly  func(*os.File) bool
		want      error
	}{
		"a private directory":               {0o700, 0o600, mounted(false), nil},
		"a ConfigMap":                       {0o777, 0o644, mounted(true), nil},
		"a directory that others can write": {0o777, 0o600, mounted(false), durable.ErrNotPrivate},
		"a file that others can write":      {0o700, 0o666, mounted(false), durable.ErrUntrusted},
		"such a file in a read-only volume": {0o777, 0o666, mounted(true), durable.ErrUntrusted},
	} {
		if err := errors.Join(os.Chmod(path, test.file), os.Chmod(filepath.Dir(path), test.dir)); err != nil {
			t.Fatal(err)
		}
		f := openFile(t, path)
		if err := checkVolumeBy(f, "/etc", test.readOnly); !errors.Is(err, test.want) {
			t.Errorf("%s: error %v, want %v", name, err, test.want)
		}
		// A pod has the node's own directory read-only, too.
		if err := checkVolumeBy(f, filepath.Dir(path), test.readOnly); (err == nil) != (test.dir == 0o700 && test.want == nil) {
			t.Errorf("%s, in the usual directory: error %v", name, err)
		}
	}
	if isReadOnly(openFile(t, path)) {
		t.Error("the test's directory is read-only")
	}
}

func openFile(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// TestCheckVolumeOfReplacedFile: the file that is read is checked, not a later one of its name.
func TestCheckVolumeOfReplacedFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "config.yaml")
	write(t, path, head)
	f := openFile(t, path)
	if err := errors.Join(os.Chmod(path, 0o666), os.Remove(path)); err != nil {
		t.Fatal(err)
	}
	write(t, path, head)
	if err := checkVolume(f, "/etc"); !errors.Is(err, durable.ErrUntrusted) {
		t.Errorf("error %v, want %v", err, durable.ErrUntrusted)
	}
}

// TestCompileChecksWhoCanWrite: config.yaml and the inventory alike.
func TestCompileChecksWhoCanWrite(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file, inventory := filepath.Join(dir, "config.yaml"), filepath.Join(dir, "gpus.yaml")
	write(t, file, head+"inventory: "+inventory+"\n")
	write(t, inventory, device("display: true"))
	c := Compiler{File: file, StateDir: "/x", NodeOS: "linux"}
	if _, _, err := c.Compile(); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{file, inventory} {
		if err := os.Chmod(path, 0o666); err != nil {
			t.Fatal(err)
		}
		usual := filepath.Join("/etc/directx-nri", filepath.Base(path))
		_, _, err := c.Compile()
		want := "check " + path + ": others can write to it: mode 0666; use a copy that only root can change: install -D -m 644 " + path + " " + usual
		if !errors.Is(err, durable.ErrUntrusted) || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("error %v, want %s", err, want)
		}
		if err := os.Chmod(path, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestCheckVolumeInHomeDirectory: root applies a file from a user's clone.
func TestCheckVolumeInHomeDirectory(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "gpus.yaml")
	write(t, path, device("display: true"))
	// Only root can give a directory to another user.
	changed, remedy := os.Chmod(filepath.Dir(path), 0o777), "chmod"
	if os.Getuid() == 0 {
		changed, remedy = os.Chown(filepath.Dir(path), 12345, 12345), "give it to root"
	}
	if changed != nil {
		t.Fatal(changed)
	}
	f := openFile(t, path)
	err := checkVolume(f, "/etc/directx-nri")
	if err == nil || !strings.HasPrefix(err.Error(), "check "+filepath.Dir(path)+": directory is not private") ||
		!strings.HasSuffix(err.Error(), "; use a copy that only root can change: install -D -m 644 "+path+" /etc/directx-nri/gpus.yaml") {
		t.Errorf("error %v", err)
	}
	// At the usual path, the directory itself must be corrected.
	if err := checkVolume(f, filepath.Dir(path)); err == nil || !strings.Contains(err.Error(), remedy) {
		t.Errorf("error %v", err)
	}
}

// Opening a named pipe waits for a writer, which no signal ends.
func TestCompileRefusesNamedPipe(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := (Compiler{File: path, Inspect: true}).Compile(); err == nil || !strings.Contains(err.Error(), "is not a regular file") {
		t.Errorf("error %v", err)
	}
}

// TestWatch changes files as an editor and as the kubelet do.
func TestWatch(t *testing.T) {
	t.Parallel()
	dir, inventoryDir := t.TempDir(), t.TempDir()
	stateDir, file, inventory := filepath.Join(dir, "state"), filepath.Join(dir, "config.yaml"), filepath.Join(inventoryDir, "gpus.yaml")
	for version, replicas := range map[string]string{"..1": "1", "..2": "2", "..bad": "0"} {
		if err := os.Mkdir(filepath.Join(dir, version), 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, version, "config.yaml"), head+"replicas: "+replicas+"\ninventory: "+inventory+"\n")
	}
	link := func(version string) {
		t.Helper()
		temp := filepath.Join(dir, "..data_tmp")
		if err := errors.Join(os.Symlink(version, temp), os.Rename(temp, filepath.Join(dir, "..data"))); err != nil {
			t.Fatal(err)
		}
	}
	link("..1")
	if err := os.Symlink(filepath.Join("..data", "config.yaml"), file); err != nil {
		t.Fatal(err)
	}
	write(t, inventory, device("display: true"))
	c := Compiler{File: file, StateDir: stateDir, NodeOS: "linux"}
	p, devices, err := c.Compile()
	if err != nil {
		t.Fatal(err)
	}
	reports := make(chan error, 100)
	report := func(err error) { reports <- err }

	link("..2")
	if p, devices, err = c.Watch(t.Context(), p, devices, report); err != nil || p.Resources[0].Replicas != 2 {
		t.Fatalf("a changed configuration: %+v, %v", p, err)
	}
	write(t, inventory, "# "+device("compute: true"))
	write(t, inventory, device("compute: true"))
	if p, devices, err = c.Watch(t.Context(), p, devices, report); err != nil || len(devices) != 1 || !devices[0].SupportsCompute {
		t.Fatalf("a changed inventory: %+v, %v", devices, err)
	}
	for len(reports) > 0 {
		<-reports
	}

	// A policy or compiled inventory that is lost or damaged is written again.
	truncate := func(path string) error { return os.Truncate(path, 10) }
	for _, damage := range []func() error{
		func() error { return os.Remove(policy.Path(stateDir)) }, func() error { return truncate(policy.Path(stateDir)) },
		func() error { return os.Remove(node.Inventory(stateDir).Path()) }, func() error { return truncate(node.Inventory(stateDir).Path()) },
	} {
		if err := damage(); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		if _, _, err := c.Watch(ctx, p, devices, func(err error) { reports <- err; cancel() }); !errors.Is(err, context.Canceled) {
			t.Errorf("error %v", err)
		}
		err := <-reports
		if _, lost := node.Inventory(stateDir).Devices(t.Context()); err != nil || c.lost(t.Context()) || lost != nil {
			t.Errorf("%v, the policy is lost: %t, the inventory: %v", err, c.lost(t.Context()), lost)
		}
	}

	// An invalid file, and then one with another comment, change nothing, also not the
	// policy of an earlier run.
	if p, err = policy.Read(stateDir); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	ended := make(chan error)
	go func() {
		_, _, err := c.Watch(ctx, p, devices, report)
		ended <- err
	}()
	<-reports
	link("..bad")
	for err := range reports {
		if err != nil && strings.Contains(err.Error(), "replicas: 0 is out of range") {
			break
		}
	}
	write(t, filepath.Join(dir, "..2", "config.yaml"), head+"replicas: 2\ninventory: "+inventory+" # comment\n")
	link("..2")
	for err := range reports {
		if err == nil {
			break
		}
	}
	end := errors.New("end")
	cancel(end)
	if err := <-ended; !errors.Is(err, end) {
		t.Errorf("error %v, want %v", err, end)
	}
}

// TestWatchTiming: a file that appears is compiled when it is whole, and what was refused, or
// is lost, is tried again without a change of a file.
func TestWatchTiming(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		file, stateDir := filepath.Join(dir, "config.yaml"), filepath.Join(dir, "state")
		noRuntime := errors.New("the real shim is not there yet")
		var hasRuntime atomic.Bool
		c := Compiler{File: file, StateDir: stateDir, NodeOS: "linux", CheckRuntime: func(_, name string) error {
			if name == "" || hasRuntime.Load() {
				return nil
			}
			return noRuntime
		}}
		p, devices, err := c.Compile() // the defaults
		if err := errors.Join(err, Install(stateDir, p, devices)); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		reports := make(chan error, 1000)
		returned := make(chan policy.Policy, 1)
		go func() {
			next, _, _ := c.Watch(ctx, p, devices, func(err error) { reports <- err })
			returned <- next
		}()
		wait := func(d time.Duration, want string) { // of errors since the last call
			t.Helper()
			time.Sleep(d)
			synctest.Wait()
			var got error
			for len(reports) > 0 {
				got = errors.Join(got, <-reports)
			}
			if (want == "") != (got == nil) || got != nil && !strings.Contains(got.Error(), want) {
				t.Errorf("reported %v, want %q", got, want)
			}
		}
		wait(pollInterval/2, "")
		for range 2 * checkInterval / pollInterval { // It grows, and no part of it is valid.
			write(t, file, "# "+strings.Repeat("x", time.Now().Second()*1000+time.Now().Nanosecond()/1e6)+"\nreplicas: 0")
			wait(pollInterval, "")
		}
		write(t, file, head+"shim: {runtime: containerd-shim-x}\n")
		wait(2*pollInterval, noRuntime.Error())
		wait(3*checkInterval, "") // It is reported once.
		if err := os.Remove(policy.Path(stateDir)); err != nil {
			t.Fatal(err)
		}
		write(t, file, head)
		wait(2*pollInterval, "")
		if err := os.Remove(policy.Path(stateDir)); err != nil {
			t.Fatal(err)
		}
		wait(checkInterval+pollInterval, "")
		if c.lost(t.Context()) || len(returned) > 0 {
			t.Errorf("the policy is lost: %t, a new one is in force: %t", c.lost(t.Context()), len(returned) > 0)
		}
		write(t, file, head+"shim: {runtime: containerd-shim-x}\n")
		wait(2*pollInterval, noRuntime.Error())
		hasRuntime.Store(true)
		wait(checkInterval+pollInterval, "")
		if next := <-returned; next.Shim.Runtime != "containerd-shim-x" {
			t.Errorf("%+v", next.Shim)
		}
	})
}
