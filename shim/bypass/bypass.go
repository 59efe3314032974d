// Package bypass records that containerd runs the shim for the sandboxes of pods, and not for their
// containers: the shim sees it, and directx-advertiser offers no GPU while the record exists.
package bypass

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/directx-nri/directx-nri/internal/access"
	"github.com/directx-nri/directx-nri/internal/durable"
	"github.com/directx-nri/directx-nri/internal/paths"
)

// path returns the path of the record.
func path(stateDir string) string { return filepath.Join(stateDir, paths.BypassFile) }

// Record records durably why containerd bypasses the shim.
func Record(stateDir, reason string) error {
	if err := access.MakePrivate(stateDir); err != nil {
		return err
	}
	return durable.Replace(path(stateDir), []byte(reason+"\n"), 0o600)
}

// Err means that containerd runs the shim for the sandboxes of pods only.
var Err = errors.New("containerd bypasses the shim for the containers of pods")

// Check returns an error that matches [Err], with the reason, while containerd bypasses
// the shim.
func Check(stateDir string) error {
	reason, err := durable.Read(path(stateDir), 64<<10)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	}
	return fmt.Errorf("%w: %s", Err, cmp.Or(strings.TrimSpace(string(reason)), "the reason is unknown"))
}

// Clear removes what [Record] wrote, if anything.
func Clear(stateDir string) error { return durable.Remove(path(stateDir)) }
