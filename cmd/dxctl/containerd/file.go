package containerd

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"

	"github.com/directx-nri/directx-nri/internal/durable"
	"github.com/directx-nri/directx-nri/internal/errlog"
)

// ConfigFile is containerd's configuration file. A file that does not exist is empty.
type ConfigFile struct {
	Path   string // without symbolic links
	Given  string // the path as it was given to dxctl, which can have symbolic links
	Exists bool
	Text   []byte
}

// ReadConfigFile reads a file that another process may replace at the same time.
func ReadConfigFile(path string) (f ConfigFile, err error) {
	if f.Given, err = filepath.Abs(path); err != nil {
		return f, err
	}
	if f.Path, err = filepath.EvalSymlinks(f.Given); err != nil {
		if durable.Exists(f.Given) {
			// A new file would replace the link.
			return f, errlog.WithRemedy(fmt.Errorf("%w: %s is a symbolic link", err, f.Given),
				"use its target instead, and in a pod mount the target's directory")
		}
		f.Path = f.Given
	}
	f.Text, err = durable.Read(f.Path, math.MaxInt64)
	f.Exists = err == nil
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return f, err
}

// Write replaces the file, unless another program has changed it since it was read.
func (f ConfigFile) Write(text []byte) error {
	now, err := ReadConfigFile(f.Path)
	switch {
	case err != nil:
		return err
	case now.Exists != f.Exists || !bytes.Equal(now.Text, f.Text):
		return errlog.WithRemedy(fmt.Errorf("%s has changed meanwhile", f.Path), "run the command again")
	}
	if err := os.MkdirAll(filepath.Dir(f.Path), 0o755); err != nil {
		return fmt.Errorf("create the directory of %s: %w", f.Path, err)
	}
	perm := fs.FileMode(0o644)
	if info, err := os.Stat(f.Path); err == nil {
		perm = info.Mode().Perm()
	}
	return durable.ReplaceKeepingAccess(f.Path, text, perm)
}

// RecordedConfig is containerd's configuration file with the record of our changes.
type RecordedConfig struct {
	File   ConfigFile
	Record ChangeRecord
}

// ReadRecordedConfig reads the configuration file and the record, which must be that of the file.
func ReadRecordedConfig(path, stateDir string) (c RecordedConfig, err error) {
	if c.File, err = ReadConfigFile(path); err != nil {
		return c, err
	}
	c.Record, err = ReadRecord(stateDir)
	// The target of a link may have changed, such as that of a snap's directory "current".
	if r := c.Record; err == nil && r.Config != "" && r.Config != c.File.Path && r.Given != c.File.Given {
		err = errlog.WithRemedy(fmt.Errorf("the record %s belongs to %s, not to %s", RecordPath(stateDir), r.Given, path),
			"set --containerd-config "+r.Given+"; to configure another containerd, use another --state-dir")
	}
	return c, err
}

// Restore writes the text without edits. If the text is blank and dxctl created the file, Restore
// removes the file.
func (c *RecordedConfig) Restore(text []byte) error {
	if err := c.File.Write(text); err != nil || !c.Record.Created || len(bytes.TrimSpace(text)) > 0 {
		return err
	}
	return durable.Remove(c.File.Path)
}
