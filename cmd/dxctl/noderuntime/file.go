package noderuntime

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"

	"github.com/directx-nri/directx-nri/internal/durable"
	"github.com/directx-nri/directx-nri/internal/remedy"
)

// configFile is containerd's configuration file. A file that does not exist is empty.
type configFile struct {
	path   string // without symbolic links
	exists bool
	text   []byte
}

// readConfigFile reads a file that another process may replace at the same time.
func readConfigFile(path string) (f configFile, err error) {
	resolved, err := filepath.EvalSymlinks(path)
	switch {
	case err == nil:
		path = resolved
	case durable.Exists(path):
		// A new file would replace the link.
		return f, remedy.With(fmt.Errorf("%w: %s is a symbolic link", err, path), "use its target instead, and in a pod mount the target's directory")
	}
	if f.path, err = filepath.Abs(path); err != nil {
		return f, err
	}
	f.text, err = durable.Read(f.path, math.MaxInt64)
	f.exists = err == nil
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return f, err
}

func (f configFile) write(text []byte) error {
	now, err := readConfigFile(f.path)
	switch {
	case err != nil:
		return err
	case now.exists != f.exists || !bytes.Equal(now.text, f.text): // Another program has changed it.
		return remedy.With(fmt.Errorf("%s has changed meanwhile", f.path), "run the command again")
	}
	if err := os.MkdirAll(filepath.Dir(f.path), 0o755); err != nil {
		return fmt.Errorf("create the directory of %s: %w", f.path, err)
	}
	perm := fs.FileMode(0o644)
	if info, err := os.Stat(f.path); err == nil {
		perm = info.Mode().Perm()
	}
	return durable.ReplaceKeepingAccess(f.path, text, perm)
}

// recordedConfig is containerd's configuration file with the record of our changes.
type recordedConfig struct {
	file   configFile
	record changeRecord
}

// readRecordedConfig reads the configuration file and the record, which must be that of the file.
func readRecordedConfig(path, stateDir string) (c recordedConfig, err error) {
	if c.file, err = readConfigFile(path); err != nil {
		return c, err
	}
	if c.record, err = readRecord(stateDir); err == nil && c.record.Config != "" && c.record.Config != c.file.path {
		err = fmt.Errorf("the record %s belongs to %s: use another --state-dir for %s", recordPath(stateDir), c.record.Config, c.file.path)
	}
	return c, err
}

// restore writes the text without edits. If the text is blank and dxctl created the file, restore
// removes the file.
func (c *recordedConfig) restore(text []byte) error {
	if err := c.file.write(text); err != nil || !c.record.Created || len(bytes.TrimSpace(text)) > 0 {
		return err
	}
	return durable.Remove(c.file.path)
}
