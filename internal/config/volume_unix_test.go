//go:build unix

package config

import (
	"errors"
	"os"
	"testing"

	"directx-nri/internal/durable"
)

func TestVolumeIsTakenWhenItIsMountedReadOnly(t *testing.T) {
	t.Parallel()
	folder, path := newFolder(t)
	write(t, path, head)
	mounted := func(readOnly bool, err error) func(string) (bool, error) {
		return func(string) (bool, error) { return readOnly, err }
	}
	if err := checkVolumeBy(path, mounted(false, errors.New("not asked"))); err != nil {
		t.Errorf("a private folder: %v", err)
	}
	if err := os.Chmod(folder, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := checkVolumeBy(path, mounted(true, nil)); err != nil {
		t.Errorf("as a ConfigMap is mounted: %v", err)
	}
	if err := checkVolumeBy(path, mounted(false, nil)); !errors.Is(err, durable.ErrNotPrivate) {
		t.Errorf("mounted so that others can write: %v", err)
	}
	if err := checkVolumeBy(path, mounted(false, os.ErrPermission)); !errors.Is(err, os.ErrPermission) {
		t.Errorf("not known how it is mounted: %v", err)
	}
	if err := os.Chmod(path, 0o666); err != nil {
		t.Fatal(err)
	}
	if err := checkVolumeBy(path, mounted(true, nil)); !errors.Is(err, durable.ErrUntrusted) {
		t.Errorf("a file that others can write: %v", err)
	}
	if readOnly, err := isReadOnly(path); err != nil || readOnly {
		t.Errorf("the test's own folder: %t, %v", readOnly, err)
	}
}
