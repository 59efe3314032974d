package advertiser

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/directx-nri/directx-nri/internal/durable"
)

var (
	// errNotSetUp means that the node is being set up, or that its setup failed.
	errNotSetUp = errors.New("the node is not set up: see the output of 'dxctl runtime setup'")
	// errNoGPU means that the node is left unchanged until it has a GPU.
	errNoGPU = errors.New("the node is set up when it has a GPU")
)

// checkSetupFile returns nil if the file at path says that the node is set up. 'dxctl runtime setup'
// writes it: empty then, or with the reason why the node is left unchanged.
func checkSetupFile(path string) error {
	const limit = 4 << 10
	text, err := durable.Read(path, limit)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return errNotSetUp
	case err != nil:
		return fmt.Errorf("%w: %w", errNotSetUp, err)
	case len(text) > 0:
		return fmt.Errorf("%w: %s", errNoGPU, text)
	}
	return nil
}
