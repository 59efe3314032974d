// Package statefile reads and writes the JSON files that dxctl keeps in the state directory
// for its next run.
package statefile

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"

	"github.com/directx-nri/directx-nri/internal/durable"
)

// Read returns the content of a file, nil if the file does not exist. It returns an error if other
// users can write the file, because a privileged program acts on its content.
func Read[T any](path string) (content *T, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("read the record %s: %w", path, err)
		}
	}()
	text, err := durable.Read(path, math.MaxInt64)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if err := durable.CheckFile(path); err != nil {
		return nil, err
	}
	content = new(T)
	if err := json.Unmarshal(text, content); err != nil {
		return nil, err
	}
	return content, nil
}

// Write replaces a file. It creates the state directory if necessary.
func Write(path string, content any) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("write the record %s: %w", path, err)
		}
	}()
	text, err := json.MarshalIndent(content, "", "  ")
	if err != nil {
		return err
	}
	if err := durable.MakePrivate(filepath.Dir(path)); err != nil {
		return err
	}
	return durable.Replace(path, append(text, '\n'), 0o600)
}

// Remove removes a file, and then the state directory if that is empty.
func Remove(path string) error {
	err := durable.Remove(path)
	_ = os.Remove(filepath.Dir(path)) // Fails unless it is empty.
	return err
}
