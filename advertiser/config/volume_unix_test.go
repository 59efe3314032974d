//go:build unix

package config

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/directx-nri/directx-nri/internal/access"
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
		"a directory that others can write": {0o777, 0o600, mounted(false), access.ErrUntrusted},
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
		if trusted := test.dir == 0o700 && test.want == nil; errors.Is(err, access.ErrUntrusted) == trusted {
			t.Errorf("%s, in the usual directory: %v", name, err)
		}
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

// TestWait changes files as an editor and as the kubelet do. The clock is the test's own.
func TestWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		file, inventory := filepath.Join(dir, "config.yaml"), filepath.Join(dir, "gpus.yaml")
		c, seen := Compiler{File: file}, ""
		wait := func(what string, want time.Duration) {
			t.Helper()
			start, err := time.Now(), error(nil)
			seen, err = c.Wait(t.Context(), inventory, seen)
			if took := time.Since(start); err != nil || took != want {
				t.Errorf("%s: %v, %v; want %v", what, took, err, want)
			}
		}
		link := func(version string) {
			t.Helper()
			temp := filepath.Join(dir, "..data_tmp")
			testutil.WriteFile(t, filepath.Join(dir, version, "config.yaml"), head+"# "+version, 0o600)
			testutil.NoError(t, os.Symlink(version, temp), os.Rename(temp, filepath.Join(dir, "..data")))
		}
		wait("no file", pollInterval)
		link("..1")
		testutil.NoError(t, os.Symlink(filepath.Join("..data", "config.yaml"), file))
		wait("a new file", pollInterval)
		link("..2")
		wait("another target of the link", pollInterval)
		testutil.WriteFile(t, inventory, device("display: true"), 0o600)
		wait("an inventory", pollInterval)
		wait("no change", compileInterval)
		go func() { // It writes between the polls.
			time.Sleep(pollInterval / 2)
			for i := range 2 * compileInterval / pollInterval {
				testutil.WriteFile(t, inventory, strings.Repeat("x", int(i)), 0o600)
				time.Sleep(pollInterval)
			}
		}()
		wait("a file that grows", 2*compileInterval+pollInterval)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := c.Wait(ctx, inventory, seen); !errors.Is(err, context.Canceled) {
			t.Errorf("error %v", err)
		}
	})
}
