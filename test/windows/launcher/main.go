//go:build windows

// The launcher runs the real containerd-shim-runhcs-v1.exe with its own arguments, input and
// environment, and records its calls. Under Wine the first connection to a new shim's pipe is
// lost, so the launcher connects once before it prints runhcs' answer.
//
// It is installed as containerd-shim-runhcs-v1.exe in a node's directory, or in directx-nri
// below it. The real one is in the directory real of the node's directory, and the calls are
// files in the directory launcher beside that.
//
// On Windows itself, it then removes GPUs that do not exist from config.json.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/directx-nri/directx-nri/internal/paths"
)

func main() {
	status, err := run(os.Args[1:])
	if err != nil {
		fmt.Fprintf(os.Stderr, "launcher: %v\n", err)
		status = max(status, 1)
	}
	os.Exit(status)
}

// configFile is a container's specification, in the working directory.
const configFile = "config.json"

// removeGPUs is the environment variable that makes the launcher remove GPUs.
const removeGPUs = "LAUNCHER_REMOVES_GPUS"

// run returns the exit status.
func run(args []string) (int, error) {
	dir := filepath.Dir(os.Args[0]) // While it runs, its file can be moved.
	if filepath.Base(dir) == paths.RealShimDir {
		dir = filepath.Dir(dir)
	}
	c, stdin := call{Args: args}, io.Reader(os.Stdin)
	if i := slices.Index(args, "-id"); i >= 0 && i+1 < len(args) {
		c.ID = args[i+1]
	}
	start := slices.Contains(args, "start")
	if start {
		var err error
		if c.Stdin, err = io.ReadAll(os.Stdin); err != nil {
			return 0, fmt.Errorf("read the runtime's options: %w", err)
		}
		stdin = bytes.NewReader(c.Stdin)
		config, err := os.ReadFile(configFile)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return 0, err
		}
		c.Config = string(config)
	}
	if err := c.record(filepath.Join(dir, "launcher")); err != nil {
		return 0, err
	}
	if c.Config != "" && os.Getenv(removeGPUs) != "" {
		if err := removeDevices([]byte(c.Config)); err != nil {
			return 0, err
		}
	}
	var answer bytes.Buffer
	cmd := exec.Command(filepath.Join(dir, "real", paths.Runhcs), args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &answer, os.Stderr
	err := cmd.Run()
	if exit := (&exec.ExitError{}); err != nil && !errors.As(err, &exit) {
		return 0, err
	}
	if start && err == nil {
		// The shim's process opens its pipe before start ends.
		if pipe, err := os.OpenFile(answer.String(), os.O_RDWR, 0); err == nil {
			_ = pipe.Close()
		}
	}
	_, err = os.Stdout.Write(answer.Bytes())
	return cmd.ProcessState.ExitCode(), err
}

// call is the record of a call.
type call struct {
	ID     string   `json:"id"`
	Args   []string `json:"args"`
	Stdin  []byte   `json:"stdin"`
	Config string   `json:"config"`
}

// record writes the call into a directory. Each call has its own file: Wine does not append atomically,
// and a shim that is killed can leave half a record.
func (c call) record(dir string) error {
	data, err := json.Marshal(c)
	if err != nil {
		return err
	}
	file := filepath.Join(dir, fmt.Sprintf("call-%d-%d", time.Now().UnixNano(), os.Getpid()))
	return errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(file+".tmp", data, 0o600), os.Rename(file+".tmp", file+".json"))
}

// removeDevices writes config.json without single GPUs. It keeps their class, which HCS accepts on a machine without
// one, and a device of an unknown type, which runhcs has to refuse.
func removeDevices(config []byte) error {
	var spec specs.Spec
	if err := json.Unmarshal(config, &spec); err != nil || spec.Windows == nil {
		return err
	}
	spec.Windows.Devices = slices.DeleteFunc(spec.Windows.Devices, func(d specs.WindowsDevice) bool { return d.IDType == "vpci-location-path" })
	changed, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	return os.WriteFile(configFile, changed, 0o600)
}
