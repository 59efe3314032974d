package shimfile

import (
	"cmp"
	"errors"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/directx-nri/directx-nri/internal/durable"
)

// The shim writes a record if containerd runs it for the sandboxes of pods, and not for the pods'
// containers. directx-advertiser offers no GPU while the record exists.

func notServedPath(stateDir string) string { return filepath.Join(stateDir, "not-served") }

// RecordNotServed records durably why the containers of pods are not served.
func RecordNotServed(stateDir, reason string) error {
	if err := durable.MakePrivate(stateDir); err != nil {
		return err
	}
	return durable.Replace(notServedPath(stateDir), []byte(reason+"\n"), 0o600)
}

// NotServedReason returns why the containers of pods are not served, "" if they are.
func NotServedReason(stateDir string) (reason string, err error) {
	data, err := durable.Read(notServedPath(stateDir), 64<<10)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return cmp.Or(strings.TrimSpace(string(data)), "the reason is unknown"), err
}

// ClearNotServed removes what [RecordNotServed] wrote, if anything.
func ClearNotServed(stateDir string) error { return durable.Remove(notServedPath(stateDir)) }
