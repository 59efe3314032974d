//go:build linux

package shimfile_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"directx-nri/discovery"
	"directx-nri/discovery/compiled"
	"directx-nri/internal/paths"
	"directx-nri/internal/policy"
	"directx-nri/internal/shimfile"
)

// build builds the real shim as the given version.
func build(t *testing.T, version string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), version)
	command := exec.Command("go", "build", "-buildvcs=false", "-ldflags", "-X main.version="+version, "-o", path, "directx-nri/cmd/containerd-shim-directx-v1")
	command.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return path
}

func write(t *testing.T, path string, content []byte, perm os.FileMode) {
	t.Helper()
	// A process that is forked now has the file open, and it cannot be run:
	// https://go.dev/issue/22315.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(path, content, perm); err != nil {
		t.Fatal(err)
	}
}

// bed is a node with a bundle, and a script as the real runtime shim.
type bed struct{ dir, shim string }

const answer = "unix:///address"

func newBed(t *testing.T) bed {
	t.Helper()
	dir := t.TempDir()
	b := bed{dir, filepath.Join(dir, "bin", shimfile.Name())}
	runtime, state := filepath.Join(dir, "real"), filepath.Join(dir, "state")
	write(t, runtime, []byte("#!/bin/sh\nprintf "+answer+"\n"), 0o755)
	gpu := discovery.Device{
		InstanceID: "GPU", SupportsDisplay: true, DeviceNodes: []discovery.DeviceNode{{Path: "/dev/null", ContainerPath: "/dev/null"}},
	}
	p := policy.Default()
	p.Inventory, p.Shim.Runtime = true, runtime
	if err := errors.Join(compiled.Write(state, []discovery.Device{gpu}), policy.Write(state, p)); err != nil {
		t.Fatal(err)
	}
	return b
}

// start starts a container with the shim as containerd does.
func (b bed) start(t *testing.T, request string) (output, edited string, err error) {
	t.Helper()
	bundle, err := os.MkdirTemp(b.dir, "bundle")
	if err != nil {
		t.Fatal(err)
	}
	spec := filepath.Join(bundle, "config.json")
	write(t, spec, []byte(`{"ociVersion":"1.1.0","process":{"env":["`+request+`"]},"linux":{}}`), 0o600)
	command := exec.Command(b.shim, "-namespace", "test", "-id", "test", "start")
	command.Dir = bundle
	command.Env = append(os.Environ(), paths.StateDirVariable+"="+filepath.Join(b.dir, "state"))
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
	versions := []string{build(t, "one"), build(t, "two")}
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
