//go:build linux

package shimfile_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"directx-nri/internal/shimfile"
)

// build builds the real shim as the given version. With an overlay it is built
// of other files in place of those of the repository.
func build(t *testing.T, version string, overlay map[string]string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), version)
	args := []string{"build", "-buildvcs=false", "-ldflags", "-X main.version=" + version, "-o", path}
	if overlay != nil {
		content, err := json.Marshal(map[string]map[string]string{"Replace": overlay})
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "overlay.json")
		write(t, file, content, 0o600)
		args = append(args, "-overlay", file)
	}
	command := exec.Command("go", append(args, "directx-nri/cmd/containerd-shim-directx-v1")...)
	command.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return path
}

func write(t *testing.T, path string, content []byte, perm os.FileMode) {
	t.Helper()
	// A process that is forked meanwhile has the file open for an instant longer,
	// and it could not be run: https://github.com/golang/go/issues/22315.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(path, content, perm); err != nil {
		t.Fatal(err)
	}
}

// bed is a node with a bundle, and a script as the real runtime shim.
type bed struct{ folder, shim string }

const answer = "unix:///address"

func newBed(t *testing.T) bed {
	t.Helper()
	folder := t.TempDir()
	if err := os.Chmod(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	b := bed{folder, filepath.Join(folder, "bin", shimfile.Name())}
	runtime, inventory := filepath.Join(folder, "real"), filepath.Join(folder, "gpus.yaml")
	write(t, runtime, []byte("#!/bin/sh\nprintf "+answer+"\n"), 0o755)
	write(t, inventory, []byte("apiVersion: directx.microsoft.com/v1alpha1\nkind: Inventory\ndevices: [{instanceID: GPU, display: true, linux: {deviceNodes: [/dev/null]}}]\n"), 0o600)
	write(t, filepath.Join(folder, "config.yaml"), []byte("apiVersion: directx.microsoft.com/v1alpha1\nkind: Configuration\nstateDir: "+
		filepath.Join(folder, "state")+"\ninventory: "+inventory+"\nshim: {runtime: "+runtime+"}\n"), 0o600)
	return b
}

// start starts a container with the shim as containerd does.
func (b bed) start(t *testing.T, request string) (output, edited string, err error) {
	t.Helper()
	bundle, err := os.MkdirTemp(b.folder, "bundle")
	if err != nil {
		t.Fatal(err)
	}
	spec := filepath.Join(bundle, "config.json")
	write(t, spec, []byte(`{"ociVersion":"1.1.0","process":{"env":["`+request+`"]},"linux":{}}`), 0o600)
	command := exec.Command(b.shim, "-namespace", "test", "-id", "test", "start")
	command.Dir = bundle
	command.Env = append(os.Environ(), "DIRECTX_NRI_CONFIG="+filepath.Join(b.folder, "config.yaml"))
	out, err := command.CombinedOutput()
	after, readErr := os.ReadFile(spec)
	if readErr != nil {
		t.Fatal(readErr)
	}
	return string(out), string(after), err
}

func (b bed) mustStart(t *testing.T) {
	t.Helper()
	out, spec, err := b.start(t, "DIRECTX_VISIBLE_DEVICES=all")
	if err != nil || out != answer || !strings.Contains(spec, "/dev/null") {
		t.Fatalf("%v: %q, %s", err, out, spec)
	}
}

func (b bed) install(t *testing.T, source string) {
	t.Helper()
	if _, err := shimfile.Install(t.Context(), source, b.shim); err != nil {
		t.Fatal(err)
	}
}

// No start fails while the shim is replaced again and again.
func TestRealShimIsReplacedUnderStarts(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	versions := []string{build(t, "one", nil), build(t, "two", nil)}
	b.install(t, versions[0])
	installed := make(chan error)
	go func() {
		for i := range 10 {
			if _, err := shimfile.Install(t.Context(), versions[(i+1)%2], b.shim); err != nil {
				installed <- err
				return
			}
			time.Sleep(time.Millisecond)
		}
		installed <- nil
	}()
	for starts := 0; ; starts++ {
		select {
		case err := <-installed:
			if err != nil || starts == 0 {
				t.Errorf("after %d starts: %v", starts, err)
			}
			return
		default:
			b.mustStart(t)
		}
	}
}
