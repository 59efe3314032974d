//go:build unix

package config

import (
	"strings"
	"syscall"
	"testing"
)

// Opening a named pipe waits for somebody who writes to it, and no signal ends
// that: dxctl would hang on such a file.
func TestInspectRefusesANamedPipe(t *testing.T) {
	t.Parallel()
	_, path := newFolder(t)
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Inspect(path); err == nil || !strings.Contains(err.Error(), "is not a regular file") {
		t.Errorf("error %v", err)
	}
}
