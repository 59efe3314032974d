package shimfile

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/directx-nri/directx-nri/internal/access"
	"github.com/directx-nri/directx-nri/internal/durable"
	"github.com/directx-nri/directx-nri/internal/paths"
)

// RecordBypass records why containerd bypasses the shim, or, if reason is "", that it does not. It can run the shim for the
// sandboxes of pods, and not for their containers: the shim sees it, and directx-advertiser offers no GPU while the
// record exists.
func RecordBypass(stateDir, reason string) error {
	path := filepath.Join(stateDir, paths.BypassFile)
	if reason == "" {
		return durable.Remove(path)
	}
	if err := access.MakePrivate(stateDir); err != nil {
		return err
	}
	return durable.Update(path, []byte(reason+"\n"), 0o600)
}

// CheckBypass returns the recorded reason as an error while containerd bypasses the shim.
func CheckBypass(stateDir string) error {
	reason, err := durable.Read(filepath.Join(stateDir, paths.BypassFile), 64<<10)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	}
	return fmt.Errorf("containerd bypasses the shim for the containers of pods: %s", strings.TrimSpace(string(reason)))
}
