//go:build windows

// The launcher runs the real containerd-shim-runhcs-v1.exe with its own arguments, input and
// environment. Under Wine the first connection to a new shim's pipe is lost, so the launcher
// connects once before it prints runhcs' answer.
//
// It is installed as containerd-shim-runhcs-v1.exe in a node's directory, or in directx-nri
// below it. The real one is in the directory real of the node's directory. In the directory
// launcher beside that, the launcher records its calls and waits on request:
//
//	launcher\call-TIME-PID.json    a call
//	launcher\config-ID.json        the config.json of a start
//	launcher\hang-before-ID        wait before runhcs is run, until the file is removed
//	launcher\hang-after-ID         wait before runhcs' answer is printed
//	launcher\hanging-ID            exists while it waits
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

// run returns the exit status.
func run(args []string) (int, error) {
	dir := filepath.Dir(os.Args[0]) // While it runs, its file can be moved.
	if filepath.Base(dir) == paths.RealShimDir {
		dir = filepath.Dir(dir)
	}
	l := launcher{runhcs: filepath.Join(dir, "real", paths.Runhcs), records: filepath.Join(dir, "launcher"), args: args}
	if i := slices.Index(args, "-id"); i >= 0 && i+1 < len(args) {
		l.id = args[i+1]
	}
	if slices.Contains(args, "start") {
		return l.start()
	}
	if err := l.record(nil); err != nil {
		return 0, err
	}
	return l.exec(os.Stdin, os.Stdout)
}

// launcher is a call of the program.
type launcher struct {
	runhcs, records string
	args            []string
	id              string
}

// exec runs runhcs and returns its exit status, or an error if it cannot be started.
func (l launcher) exec(stdin io.Reader, stdout io.Writer) (int, error) {
	cmd := exec.Command(l.runhcs, l.args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, stdout, os.Stderr
	err := cmd.Run()
	if exit := (&exec.ExitError{}); errors.As(err, &exit) {
		return exit.ExitCode(), nil
	}
	return 0, err
}

// start runs runhcs' start and connects to the pipe of its answer.
func (l launcher) start() (int, error) {
	options, err := io.ReadAll(os.Stdin)
	if err != nil {
		return 0, fmt.Errorf("read the runtime's options: %w", err)
	}
	if err := errors.Join(l.record(options), l.hang("before")); err != nil {
		return 0, err
	}
	var answer bytes.Buffer
	if status, err := l.exec(bytes.NewReader(options), &answer); status != 0 || err != nil {
		return status, err
	}
	// The shim's process opens its pipe before start ends.
	if pipe, err := os.OpenFile(answer.String(), os.O_RDWR, 0); err == nil {
		_ = pipe.Close()
	}
	if err := l.hang("after"); err != nil {
		return 0, err
	}
	_, err = os.Stdout.Write(answer.Bytes())
	return 0, err
}

// call is the record of a call.
type call struct {
	ID    string   `json:"id"`
	Args  []string `json:"args"`
	Stdin []byte   `json:"stdin"`
}

// record records the call, and config.json for a start. Each call has its own file: Wine does not append atomically,
// and a shim that is killed can leave half a record.
func (l launcher) record(stdin []byte) error {
	if err := os.MkdirAll(l.records, 0o700); err != nil {
		return err
	}
	data, err := json.Marshal(call{ID: l.id, Args: l.args, Stdin: stdin})
	if err != nil {
		return err
	}
	file := filepath.Join(l.records, fmt.Sprintf("call-%d-%d", time.Now().UnixNano(), os.Getpid()))
	if err := os.WriteFile(file+".tmp", data, 0o600); err != nil {
		return err
	}
	if err := os.Rename(file+".tmp", file+".json"); err != nil {
		return err
	}
	config, err := os.ReadFile("config.json")
	if errors.Is(err, fs.ErrNotExist) || !slices.Contains(l.args, "start") {
		return nil
	}
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(l.records, "config-"+l.id+".json"), config, 0o600); err != nil || os.Getenv(removeGPUs) == "" {
		return err
	}
	return removeDevices(config)
}

// removeGPUs is the environment variable that makes the launcher remove GPUs.
const removeGPUs = "LAUNCHER_REMOVES_GPUS"

// removeDevices writes config.json without devices, except one of an unknown type, which
// runhcs has to refuse.
func removeDevices(config []byte) error {
	var spec specs.Spec
	if err := json.Unmarshal(config, &spec); err != nil || spec.Windows == nil {
		return err
	}
	spec.Windows.Devices = slices.DeleteFunc(spec.Windows.Devices, func(d specs.WindowsDevice) bool {
		return d.IDType == "vpci-location-path" || d.IDType == "class"
	})
	changed, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	return os.WriteFile("config.json", changed, 0o600)
}

// hang waits while the test's file exists.
func (l launcher) hang(when string) error {
	order, sign := filepath.Join(l.records, "hang-"+when+"-"+l.id), filepath.Join(l.records, "hanging-"+l.id)
	if _, err := os.Stat(order); err != nil {
		return nil
	}
	if err := os.WriteFile(sign, nil, 0o600); err != nil {
		return err
	}
	for {
		if _, err := os.Stat(order); err != nil {
			return os.Remove(sign)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
