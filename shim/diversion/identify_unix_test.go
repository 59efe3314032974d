//go:build unix

package diversion

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"unicode/utf16"

	"github.com/directx-nri/directx-nri/internal/testutil"
)

// TestOurProgram: our shim for Windows is recognized, and has a version resource that names it.
func TestOurProgram(t *testing.T) {
	t.Parallel()
	program := filepath.Join(t.TempDir(), "shim.exe")
	// As the Makefile builds it.
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", program, mainPackage)
	build.Env = append(os.Environ(), "GOOS=windows", "GOARCH=amd64", "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	other := newFile(t, "no program")
	for path, want := range map[string]bool{program: true, os.Args[0]: false, other: false} {
		if got, err := isOurs(path); got != want || err != nil {
			t.Errorf("%s: %t, %v", path, got, err)
		}
	}
	if _, err := isOurs(other + ".none"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
	if _, err := isOurs("/proc/self/mem"); !errors.Is(err, syscall.EIO) {
		t.Errorf("a file that cannot be read is taken for another program: %v", err)
	}

	data, err := os.ReadFile(program)
	testutil.NoError(t, err)
	for _, text := range []string{"VS_VERSION_INFO", "directx-nri", "containerd-shim-directx-v1"} {
		var encoded []byte
		for _, unit := range utf16.Encode([]rune(text + "\x00")) {
			encoded = append(encoded, byte(unit), byte(unit>>8))
		}
		if !bytes.Contains(data, encoded) {
			t.Errorf("the version resource has no %q", text)
		}
	}
}
