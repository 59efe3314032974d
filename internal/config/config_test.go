package config

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"directx-nri/internal/durable"
	"directx-nri/internal/trusted"
)

const head = "apiVersion: directx.microsoft.com/v1alpha1\nkind: Configuration\n"

func abs(path string) string {
	if runtime.GOOS == "windows" {
		return "C:" + path
	}
	return path
}

func TestParse(t *testing.T) {
	t.Parallel()
	got, err := Parse([]byte(head + "stateDir: " + abs("/s") + "\ninventory: " + abs("/i.yaml") + "\nshim: {runtime: other-shim}\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := Config{
		APIVersion: APIVersion, Kind: Kind, StateDir: abs("/s"), Inventory: abs("/i.yaml"),
		Shim: Shim{Runtime: "other-shim", Log: filepath.Join(abs("/s"), "shim.log")},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ text, says string }{
		"empty":           {"", "empty"},
		"only a comment":  {"# nothing\n", "empty"},
		"no kind":         {"stateDir: /x\n", "kind"},
		"other kind":      {"apiVersion: directx.microsoft.com/v1alpha1\nkind: Inventory\n", "Inventory"},
		"later version":   {"apiVersion: directx.microsoft.com/v2\nkind: Configuration\n", "v2"},
		"unknown key":     {head + "statedir: /x\n", "line 3"},
		"wrong type":      {head + "shim: 3\n", "line 3"},
		"twice":           {head + "stateDir: /x\nstateDir: /y\n", "line 4"},
		"not YAML":        {"{", "line 1"},
		"second document": {head + "---\n" + head, "second"},
		"relative path":   {head + "inventory: gpus.yaml\n", "inventory"},
		"relative shim":   {head + "shim: {runtime: ../shim}\n", "shim.runtime"},
		"too long":        {head + strings.Repeat("#", maxSize), "bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := Parse([]byte(test.text))
			if err == nil || !strings.Contains(err.Error(), test.says) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %v, want one line that says %q", err, test.says)
			}
		})
	}
}

func TestRead(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	path := filepath.Join(folder, "config.yaml")
	if got, err := Read(path); err != nil || got != Default() {
		t.Errorf("no file: %+v, %v; want the default", got, err)
	}
	if err := os.WriteFile(path, []byte(head+"shim: {runtime: x}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := Read(path); err != nil || got.Shim.Runtime != "x" {
		t.Errorf("%+v, %v", got, err)
	}
	if runtime.GOOS == "windows" {
		return
	}
	if err := os.Chmod(path, 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(path); !errors.Is(err, trusted.ErrUntrusted) {
		t.Errorf("a file that everybody can write: error %v, want ErrUntrusted", err)
	}
	if err := os.Chmod(folder, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(path); !errors.Is(err, durable.ErrNotPrivate) {
		t.Errorf("a folder that everybody can write to: error %v, want ErrNotPrivate", err)
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{"", head, head + "shim: {runtime: x, log: /y}\n", "a: &a [*a]", head + "---\n", head + "stateDir: !!binary x\n", "? [a]: b\n"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Parse(data)
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Fatalf("error is more than one line: %q", err)
			}
			return
		}
		if c.Kind != Kind || !filepath.IsAbs(c.StateDir) || !filepath.IsAbs(c.Shim.Log) {
			t.Fatalf("accepted %+v", c)
		}
	})
}
