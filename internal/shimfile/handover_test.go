package shimfile

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

const (
	task    = "io.containerd.runtime.v2.task"
	sandbox = "io.containerd.sandbox.controller.v1.shim"
)

// writeBundle creates a bundle whose file names a shim.
func writeBundle(t *testing.T, state, plugin, namespace, id, shim string) Bundle {
	t.Helper()
	b := Bundle{namespace, id, filepath.Join(state, plugin, namespace, id)}
	if err := os.MkdirAll(b.Path, 0o700); err != nil {
		t.Fatal(err)
	}
	if shim == "" {
		return b
	}
	if err := os.WriteFile(filepath.Join(b.Path, binaryFile), []byte(shim), 0o640); err != nil {
		t.Fatal(err)
	}
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
	if err := os.WriteFile(filepath.Join(state, "containerd.sock"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(state, task, "k8s.io", "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}

	found, err := FindBundles(state, ours)
	if err != nil {
		t.Fatal(err)
	}
	if len(found) != 3 || found[0] != b1 || found[1] != b2 || found[2] != b3 {
		t.Fatalf("found %v", found)
	}
	if err := HandOver(found, other); err != nil {
		t.Fatal(err)
	}
	for _, b := range append(found, foreign) {
		file := filepath.Join(b.Path, binaryFile)
		got, err := os.ReadFile(file)
		info, statErr := os.Stat(file)
		if err != nil || statErr != nil || string(got) != other {
			t.Errorf("%s: %q, %v, %v", b, got, err, statErr)
		} else if runtime.GOOS != "windows" && info.Mode().Perm() != 0o640 {
			t.Errorf("%s: mode %v", b, info.Mode())
		}
		entries, err := os.ReadDir(b.Path)
		if err != nil || len(entries) != 1 || !b.Exists() {
			t.Errorf("%s: %v, %v, exists %t", b, entries, err, b.Exists())
		}
	}
	if found, err := FindBundles(state, ours); err != nil || len(found) > 0 {
		t.Errorf("again: %v, %v", found, err)
	}
	if found, err := FindBundles(filepath.Join(state, "none"), ours); err != nil || found != nil {
		t.Errorf("no state directory: %v, %v", found, err)
	}
}

func TestFindBundlesThroughSymlink(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	file, link := filepath.Join(state, "file"), filepath.Join(state, "link")
	if err := os.WriteFile(file, nil, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(file, link); err != nil {
		t.Skip(err)
	}
	b := writeBundle(t, state, task, "default", "one", link)
	if found, err := FindBundles(state, file); err != nil || len(found) != 1 || found[0] != b {
		t.Errorf("%v, %v", found, err)
	}
}

func TestHandOverIgnoresEndedContainers(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	gone := Bundle{"default", "gone", filepath.Join(state, "gone")}
	b := writeBundle(t, state, task, "default", "one", "ours")
	if err := HandOver([]Bundle{gone, b}, "real"); err != nil || gone.Exists() {
		t.Errorf("%v, exists %t", err, gone.Exists())
	}
	if got, err := os.ReadFile(filepath.Join(b.Path, binaryFile)); err != nil || string(got) != "real" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestFindBundlesReportsUnreadableFile(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	b := writeBundle(t, state, task, "default", "one", "")
	if err := os.Mkdir(filepath.Join(b.Path, binaryFile), 0o700); err != nil {
		t.Fatal(err)
	}
	// An unknown shim is not the same as no shim.
	if _, err := FindBundles(state, "ours"); err == nil || !strings.Contains(err.Error(), "one") {
		t.Error(err)
	}
}
