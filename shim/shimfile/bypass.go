package shimfile

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

// The shim records a bypass: containerd runs it for the sandboxes of pods, and not for the pods'
// containers. directx-advertiser offers no GPU while the record exists.

func bypassPath(stateDir string) string { return filepath.Join(stateDir, paths.BypassFile) }

// RecordBypass records durably why containerd bypasses the shim.
func RecordBypass(stateDir, reason string) error {
	if err := access.MakePrivate(stateDir); err != nil {
		return err
	}
	return durable.Replace(bypassPath(stateDir), []byte(reason+"\n"), 0o600)
}

// ErrBypassed means that containerd runs the shim for the sandboxes of pods only.
var ErrBypassed = errors.New("containerd bypasses the shim for the containers of pods")

// CheckBypass returns an error that matches [ErrBypassed], with the reason, while containerd bypasses
// the shim.
func CheckBypass(stateDir string) error {
	reason, err := durable.Read(bypassPath(stateDir), 64<<10)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	}
	return fmt.Errorf("%w: %s", ErrBypassed, cmp.Or(strings.TrimSpace(string(reason)), "the reason is unknown"))
}

// ClearBypass removes what [RecordBypass] wrote, if anything.
func ClearBypass(stateDir string) error { return durable.Remove(bypassPath(stateDir)) }
