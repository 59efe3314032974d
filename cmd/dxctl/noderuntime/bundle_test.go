package noderuntime

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"github.com/directx-nri/directx-nri/internal/durable"
	"github.com/directx-nri/directx-nri/internal/testutil"
)

const (
	task    = "io.containerd.runtime.v2.task"
	sandbox = "io.containerd.sandbox.controller.v1.shim"
)

// writeBundle creates a bundle whose file names a shim.
func writeBundle(t *testing.T, state, plugin, namespace, id, shim string) bundle {
	t.Helper()
	b := bundle{namespace + "/" + id, filepath.Join(state, plugin, namespace, id)}
	file := binaryFile
	if shim == "" {
		file = "config.json"
	}
	testutil.WriteFile(t, filepath.Join(b.path, file), shim, 0o640)
	return b
}

func TestHandOver(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	ours, other := filepath.Join(state, "bin", "ours"), filepath.Join(state, "bin", "real")
	b1 := writeBundle(t, state, task, "default", "one", ours)
	b2 := writeBundle(t, state, task, "k8s.io", "two", filepath.Join(state, "bin", "x")+string(filepath.Separator)+".."+string(filepath.Separator)+"ours")
	b3 := writeBundle(t, state, sandbox, "k8s.io", "three", ours)
	foreign := writeBundle(t, state, task, "k8s.io", "four", other)
	writeBundle(t, state, task, "k8s.io", "not-started", "")
	// Other things that containerd keeps there.
	writeBundle(t, state, "io.containerd.grpc.v1.cri", "sandboxes", "five", "")
	for _, file := range []string{"containerd.sock", filepath.Join(task, "k8s.io", "file")} {
		testutil.WriteFile(t, filepath.Join(state, file), "", 0o600)
	}

	found, err := findBundles(state, ours)
	if err != nil || !slices.Equal(found, []bundle{b1, b2, b3}) {
		t.Fatalf("found %v, %v", found, err)
	}
	gone := bundle{"default/gone", filepath.Join(state, "gone")} // It has ended meanwhile.
	if err := setShim(append(slices.Clone(found), gone), other); err != nil || durable.Exists(gone.path) {
		t.Fatal(err, durable.Exists(gone.path))
	}
	for _, b := range append(found, foreign) {
		file := filepath.Join(b.path, binaryFile)
		if got, err := os.ReadFile(file); err != nil || string(got) != other {
			t.Errorf("%s: %q, %v", b, got, err)
		}
		if info, err := os.Stat(file); err != nil || runtime.GOOS != "windows" && info.Mode().Perm() != 0o640 {
			t.Errorf("%s: %v, %v", b, info, err)
		}
		entries, err := os.ReadDir(b.path)
		if err != nil || len(entries) != 1 {
			t.Errorf("%s: %v, %v", b, entries, err)
		}
	}
	for _, state := range []string{state, filepath.Join(state, "none")} {
		if found, err := findBundles(state, ours); err != nil || len(found) > 0 {
			t.Errorf("%s: %v, %v", state, found, err)
		}
	}
}

func TestFindBundlesThroughSymlink(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	file, link := filepath.Join(state, "file"), filepath.Join(state, "link")
	if err := errors.Join(os.WriteFile(file, nil, 0o700), os.Symlink(file, link)); err != nil {
		t.Skip(err)
	}
	b := writeBundle(t, state, task, "default", "one", link)
	if found, err := findBundles(state, file); err != nil || !slices.Equal(found, []bundle{b}) {
		t.Errorf("%v, %v", found, err)
	}
}

func TestFindBundlesReportsUnreadableFile(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	b := writeBundle(t, state, task, "default", "one", "")
	testutil.NoError(t, os.Mkdir(filepath.Join(b.path, binaryFile), 0o700))
	_, err := findBundles(state, "ours")
	testutil.CheckError(t, "a shim that is unknown, which is not the same as no shim", err, "one")
}
