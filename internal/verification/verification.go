// Package verification reads the last result of 'dxctl verify'.
package verification

import (
	"encoding/json"
	"path/filepath"

	"github.com/directx-nri/directx-nri/internal/durable"
	"github.com/directx-nri/directx-nri/internal/paths"
)

// Result is the part of the result that other programs read.
type Result struct {
	// Works reports whether containers with GPUs start as configured.
	Works bool `json:"works"`
}

// Path returns the file with the last result in a state directory.
func Path(stateDir string) string { return filepath.Join(stateDir, paths.VerifyFile) }

// Read returns the last result in a state directory.
func Read(stateDir string) (r Result, err error) {
	text, err := durable.Read(Path(stateDir), 16<<20)
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	return r, err
}
