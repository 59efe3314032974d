// Package testutil is what several packages' tests have in common.
package testutil

import (
	"io"
	"os"
	"testing"

	"github.com/sirupsen/logrus"
)

// ShortDir returns a folder for the length of the test whose path leaves room
// for a socket's name: the kernel takes 107 bytes, and t.TempDir has the test's
// name in it.
func ShortDir(t testing.TB) string {
	t.Helper()
	folder, err := os.MkdirTemp("", "dx")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	return folder
}

// Quiet returns a log that nobody reads.
func Quiet() *logrus.Logger {
	log := logrus.New()
	log.SetOutput(io.Discard)
	return log
}
