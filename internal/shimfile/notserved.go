package shimfile

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/directx-nri/directx-nri/internal/durable"
)

// NotServed reports that the real shim keeps our shim from a pod's containers: containerd
// 2.x does not run SHIM start for them when the sandbox's shim has answered start with
// bootstrap version 3 or more (startTask in core/runtime/v2/shim_manager.go). Our shim
// writes it into the state directory, and the advertiser offers no GPU while it exists.
type NotServed struct {
	// Shim is the path of the real shim.
	Shim string `json:"shim"`
	// Version is the bootstrap version of its answer.
	Version int `json:"version"`
}

// String returns the cause and the remedies in one line.
func (n NotServed) String() string {
	return fmt.Sprintf("the real shim %s answers with bootstrap version %d, so containerd does not start the containers of pods with the runtime shim; use a shim that answers version 2, or one that honors windows.devices with injection: kubelet; then run 'dxctl runtime install'", n.Shim, n.Version)
}

func notServedPath(stateDir string) string { return filepath.Join(stateDir, "not-served.json") }

// WriteNotServed writes n into the state directory, in one step and durably.
func WriteNotServed(stateDir string, n NotServed) error {
	data, err := json.Marshal(n)
	if err == nil {
		err = durable.MakePrivate(stateDir)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", notServedPath(stateDir), err)
	}
	return durable.Replace(notServedPath(stateDir), append(data, '\n'), 0o600)
}

// ReadNotServed returns what the state directory says, ok is false if there is nothing.
// It is the zero value if the file is damaged: that the file exists is enough.
func ReadNotServed(stateDir string) (n NotServed, ok bool, err error) {
	data, err := durable.Read(notServedPath(stateDir), 64<<10)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return n, false, nil
	case err != nil:
		return n, false, err
	}
	if json.Unmarshal(data, &n) != nil {
		n = NotServed{Shim: "(unknown)"}
	}
	return n, true, nil
}

// ClearNotServed removes what [WriteNotServed] wrote, if anything.
func ClearNotServed(stateDir string) error { return durable.Remove(notServedPath(stateDir)) }
