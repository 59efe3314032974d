// Package setupfile has the file in which 'dxctl runtime setup' reports to directx-advertiser that the
// node is set up. It is empty then. Otherwise it has the reason why the node is left unchanged.
package setupfile

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/directx-nri/directx-nri/internal/durable"
	"github.com/directx-nri/directx-nri/internal/errlog"
)

// Errors of [Check].
var (
	// ErrNotSetUp means that the node is being set up, or that its setup failed.
	ErrNotSetUp = errors.New("the node is not set up: see the output of 'dxctl runtime setup'")
	// ErrNoGPU means that the node is left unchanged until it has a GPU.
	ErrNoGPU = errors.New("the node is set up when it has a GPU")
)

// Report writes to the file at path that the node is set up, or the reason why it is left unchanged.
func Report(path string, reason error) error {
	return durable.Replace(path, []byte(errlog.Text(reason)), 0o600)
}

// Check returns nil if the file at path says that the node is set up.
func Check(path string) error {
	const limit = 4 << 10
	text, err := durable.Read(path, limit)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return ErrNotSetUp
	case err != nil:
		return fmt.Errorf("%w: %w", ErrNotSetUp, err)
	case len(text) > 0:
		return fmt.Errorf("%w: %s", ErrNoGPU, text)
	}
	return nil
}
