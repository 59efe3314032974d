package readiness

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/directx-nri/directx-nri/internal/durable"
)

// Errors of [CheckSetup].
var (
	// ErrNotSetUp: the node is being set up, or that failed.
	ErrNotSetUp = errors.New("the node is not set up: see the output of 'dxctl runtime setup'")
	// ErrNoGPU: the node is left as it is until it has a GPU.
	ErrNoGPU = errors.New("the node is set up when it has a GPU")
)

// ReportSetup writes to the file at path that the node is set up, or the reason why it
// is left as it is.
func ReportSetup(path string, reason error) error {
	text := ""
	if reason != nil {
		text = reason.Error()
	}
	return durable.Replace(path, []byte(text), 0o600)
}

// CheckSetup returns nil if the node is set up, by the file at path.
func CheckSetup(path string) error {
	const limit = 4 << 10
	switch text, err := durable.Read(path, limit); {
	case errors.Is(err, fs.ErrNotExist):
		return ErrNotSetUp
	case err != nil:
		return fmt.Errorf("%w: %w", ErrNotSetUp, err)
	case len(text) > 0:
		return fmt.Errorf("%w: %s", ErrNoGPU, text)
	}
	return nil
}
