// Package statefile reads and writes the JSON files that dxctl keeps in the state directory
// for its next run.
package statefile

import (
	"encoding/json"
	"fmt"
	"math"
	"path/filepath"

	"github.com/directx-nri/directx-nri/internal/access"
	"github.com/directx-nri/directx-nri/internal/durable"
)

// Read reads a file into content. It returns an error if other users can write the file, because a
// privileged program acts on its content.
func Read(path string, content any) error {
	text, err := durable.Read(path, math.MaxInt64)
	if err == nil {
		err = access.CheckFile(path)
	}
	if err == nil {
		err = json.Unmarshal(text, content)
	}
	if err != nil {
		return fmt.Errorf("read the state file %s: %w", path, err)
	}
	return nil
}

// Write replaces a file. It creates the state directory if necessary.
func Write(path string, content any) error {
	text, err := json.MarshalIndent(content, "", "  ")
	if err == nil {
		err = access.MakePrivate(filepath.Dir(path))
	}
	if err == nil {
		err = durable.Replace(path, append(text, '\n'), 0o600)
	}
	if err != nil {
		return fmt.Errorf("write the state file %s: %w", path, err)
	}
	return nil
}
