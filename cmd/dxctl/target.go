package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/directx-nri/directx-nri/cmd/dxctl/doctor"
	"github.com/directx-nri/directx-nri/internal/cli"
	"github.com/directx-nri/directx-nri/internal/containerdconfig"
	"github.com/directx-nri/directx-nri/internal/durable"
	"github.com/directx-nri/directx-nri/internal/localgrpc"
	"github.com/directx-nri/directx-nri/internal/paths"
)

// queryTimeout limits a query whose answer is optional.
const queryTimeout = 2 * time.Second

// containerdProgram is the name of containerd's process.
const containerdProgram = "containerd"

// target is the containerd that a command is about.
type target struct {
	os           string
	config       string
	criSocket    string
	major        int
	stateDir     string
	serviceName  string
	restartBy    string
	restartMode  string
	restart      bool
	restartLimit time.Duration
	// step is called at each step that dxctl can be killed at.
	step func(name string)
}

func (t *target) addFlags(flags *pflag.FlagSet) {
	places := paths.Default()
	flags.SortFlags = false
	flags.StringVar(&t.config, "config", places.ContainerdConfig, "containerd's configuration `FILE`")
	flags.StringVar(&t.criSocket, "cri-socket", places.CRI, "containerd's CRI `SOCKET` or named pipe")
	flags.IntVar(&t.major, "containerd-major", 0, "containerd's major version, 1 or 2 (default: the running one's)")
}

// Ways to restart containerd.
const (
	restartByService = "service"
	restartBySignal  = "signal"
	restartByTask    = "task"
	restartOnReboot  = "onReboot"
)

// addChangeFlags adds the flags of a command that changes the configuration.
func (t *target) addChangeFlags(command *cobra.Command) {
	flags := command.Flags()
	flags.StringVar(&t.stateDir, "state-dir", paths.Default().State, "state `DIRECTORY`")
	flags.BoolVar(&t.restart, "restart", false, "restart containerd, and restore its configuration if it does not start")
	cli.AddChoice(command, &t.restartMode, "restart-mode", "", "how to restart it", restartByService, restartBySignal, restartByTask, restartOnReboot)
	flags.StringVar(&t.serviceName, "service", "containerd", "containerd's service in systemd or the Windows service manager")
	flags.StringVar(&t.restartBy, "restart-command", "", "shell command that restarts containerd, instead of --service")
	flags.DurationVar(&t.restartLimit, "restart-timeout", time.Minute, "limit for containerd's restart")
}

func (t *target) check() error {
	if t.major < 0 || t.major > 2 {
		return cli.Usage("--containerd-major %d: want 1, 2, or 0", t.major)
	}
	if t.restartBy != "" && !t.restart {
		return cli.Usage("--restart-command requires --restart")
	}
	switch t.restartMode {
	case "": // Not every command has the flag.
	case restartByService:
	case restartBySignal, restartByTask:
		if (t.os == "windows") != (t.restartMode == restartByTask) {
			return cli.Usage("--restart-mode %s is not supported on %s", t.restartMode, t.os)
		}
		if t.restartBy != "" {
			return cli.Usage("--restart-command excludes --restart-mode %s", t.restartMode)
		}
	case restartOnReboot:
		t.restart = false
	}
	return nil
}

// node returns how containerd reads its file.
func (t *target) node(ctx context.Context) containerdconfig.Node {
	node := containerdconfig.Node{OS: t.os, Major: t.major}
	if node.Major != 0 {
		return node
	}
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	loaded, _ := t.load(ctx) // Without an answer, the version of the file decides.
	node.Major = loaded.Major
	return node
}

// load returns the configuration of the running containerd.
func (t *target) load(ctx context.Context) (containerdconfig.Loaded, error) {
	connection, err := containerdconfig.Dial(t.criSocket)
	if err != nil {
		return containerdconfig.Loaded{}, err
	}
	defer connection.Close()
	return containerdconfig.Load(ctx, connection)
}

// imports returns an error for each file that f imports, also by another one, if it decides
// what we configure, or cannot be used: containerd does not start with it. The former
// match [doctor.ErrOverridden].
// https://github.com/containerd/containerd/blob/v2.4.2/cmd/containerd/server/config/config.go
func (t *target) imports(f containerdconfig.File, node containerdconfig.Node) (problems []error) {
	add := func(file string, err error) {
		if err != nil {
			problems = append(problems, locate(file, err))
		}
	}
	read := map[string]bool{filepath.Clean(t.config): true}
	pending, err := resolveImports(t.config, f.Imports)
	add(t.config, err)
	for len(pending) > 0 {
		name := pending[0]
		pending = pending[1:]
		if read[name] {
			continue
		}
		read[name] = true
		text, err := durable.Read(name, math.MaxInt64)
		var keys, imports []string
		if err == nil {
			keys, imports, err = containerdconfig.Overrides(text, f, node)
		}
		add(name, err)
		for _, key := range keys {
			problems = append(problems, fmt.Errorf("%s, which %s imports, has %s, which %w: move that to %[2]s", name, t.config, key, doctor.ErrOverridden))
		}
		imports, err = resolveImports(name, imports)
		add(name, err)
		pending = append(pending, imports...)
	}
	return problems
}

// resolveImports returns the files that a configuration file imports.
func resolveImports(file string, imports []string) (files []string, err error) {
	for _, name := range imports {
		if !filepath.IsAbs(name) {
			name = filepath.Join(filepath.Dir(file), name)
		}
		found := []string{filepath.Clean(name)}
		if strings.Contains(name, "*") {
			if found, err = filepath.Glob(name); err != nil {
				return nil, fmt.Errorf("imports: %s: %w", name, err)
			}
		}
		files = append(files, found...)
	}
	return files, nil
}

// locate adds the name of a file to an error.
func locate(file string, err error) error {
	var syntax *containerdconfig.SyntaxError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &syntax):
		return fmt.Errorf("%s:%w", file, err)
	}
	return fmt.Errorf("%s: %w", file, err)
}

// isOutdated reports whether the running containerd is known to have started before our
// last change of m, which is when its journal was written. Changes by others do not count.
func (t *target) isOutdated(ctx context.Context, m *managedFile) bool {
	info, err := os.Stat(m.record().path)
	if err != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	process, err := localgrpc.SocketOwner(ctx, t.criSocket)
	if err != nil {
		return false
	}
	defer func() { _ = process.Close() }()
	// If systemd created the socket, systemd is the process.
	if is, err := process.Is(containerdProgram); err != nil || !is {
		return false
	}
	started, err := process.Started()
	// A time in the future is of before the clock was set back.
	return err == nil && info.ModTime().After(started) && !info.ModTime().After(time.Now())
}
