package noderuntime

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"

	"github.com/directx-nri/directx-nri/internal/containerdconfig"
	"github.com/directx-nri/directx-nri/internal/durable"
	"github.com/directx-nri/directx-nri/internal/remedy"
	"github.com/directx-nri/directx-nri/internal/tomledit"
)

// configFile is containerd's configuration file. A file that does not exist is empty.
type configFile struct {
	path   string // without symbolic links
	exists bool
	text   []byte
	perm   fs.FileMode
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
	if errors.Is(err, fs.ErrNotExist) {
		f.perm = 0o644
		return f, nil
	}
	if err != nil {
		return f, err
	}
	info, err := os.Stat(f.path)
	if err != nil {
		return f, err
	}
	f.exists = true
	f.perm = info.Mode().Perm()
	return f, nil
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
	return durable.ReplaceKeepingAccess(f.path, text, f.perm)
}

// recordedConfig is containerd's configuration file with the record of our changes.
type recordedConfig struct {
	configFile
	changeRecord
}

// readRecordedConfig reads the configuration file and the record, which must be that of the file.
func readRecordedConfig(path, stateDir string) (c recordedConfig, err error) {
	if c.configFile, err = readConfigFile(path); err != nil {
		return c, err
	}
	if c.changeRecord, err = readRecord(stateDir); err == nil && c.Config != "" && c.Config != c.path {
		err = fmt.Errorf("the record %s belongs to %s: use another --state-dir for %s", recordPath(stateDir), c.Config, c.path)
	}
	return c, err
}

// addEdits adds edits to the record, before they are written to the file.
func (c *recordedConfig) addEdits(edits []tomledit.Edit) {
	// The record can have edits that the file does not have: another program replaced the file, or
	// a run was killed before it wrote the file.
	if text, _, err := containerdconfig.Undo(c.text, c.Edits); err == nil && bytes.Equal(text, c.text) {
		c.dropEdits(0)
	}
	if len(c.Edits) == 0 {
		c.Config, c.Created = c.path, !c.exists
	}
	c.Edits = append(c.Edits, edits...)
	c.Pending += len(edits)
	c.Failure = nil
}

// dropEdits removes all edits from the record but the first n, with which containerd has started.
func (c *recordedConfig) dropEdits(n int) {
	c.Edits, c.Pending = c.Edits[:n], 0
	if n == 0 {
		c.Config, c.Created, c.Edits = "", false, nil
	}
}

// textWithoutEdits returns the text without the edits in the record, and notes about what may
// differ from the original.
func (c *recordedConfig) textWithoutEdits(release containerdconfig.Release) (text []byte, notes []string, err error) {
	if len(c.Edits) == 0 {
		text, notes, err = containerdconfig.Remove(c.text, release)
	} else {
		text, notes, err = containerdconfig.Undo(c.text, c.Edits)
	}
	return text, notes, withFileName(c.path, err)
}

// restore writes the text without edits. If the text is blank and dxctl created the file, restore
// removes the file.
func (c *recordedConfig) restore(text []byte) error {
	if err := c.write(text); err != nil || !c.Created || len(bytes.TrimSpace(text)) > 0 {
		return err
	}
	return durable.Remove(c.path)
}
