package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"directx-nri/cmd/dxctl/doctor"
	"directx-nri/internal/cli"
	"directx-nri/internal/containerdconfig"
	"directx-nri/internal/localgrpc"
	"directx-nri/internal/paths"
	"directx-nri/internal/service"
)

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
)

// addChangeFlags adds the flags of a command that changes the configuration.
func (t *target) addChangeFlags(command *cobra.Command) {
	flags := command.Flags()
	flags.StringVar(&t.stateDir, "state-dir", paths.Default().State, "state `DIRECTORY`")
	flags.BoolVar(&t.restart, "restart", false, "restart containerd, or restore its configuration if it does not come back")
	flags.StringVar(&t.restartMode, "restart-mode", restartByService, "how to restart it: service or signal")
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
	switch {
	case t.restartMode == "" || t.restartMode == restartByService: // Not every command has the flag.
	case t.restartMode != restartBySignal:
		return checkChoice("restart-mode", t.restartMode, restartByService, restartBySignal)
	case t.os == "windows":
		return cli.Usage("--restart-mode %s is not supported on Windows", restartBySignal)
	case t.restartBy != "":
		return cli.Usage("--restart-command excludes --restart-mode %s", restartBySignal)
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
	connection, err := containerdconfig.Dial(t.criSocket)
	if err != nil {
		return node
	}
	defer connection.Close()
	// Without an answer, the version of the file decides.
	loaded, _ := containerdconfig.Load(ctx, connection)
	node.Major = loaded.Major
	return node
}

// loaded returns the handlers of the running containerd.
func (t *target) loaded(ctx context.Context) ([]containerdconfig.Handler, error) {
	connection, err := containerdconfig.Dial(t.criSocket)
	if err != nil {
		return nil, err
	}
	defer connection.Close()
	loaded, err := containerdconfig.Load(ctx, connection)
	return loaded.Handlers, err
}

// imports returns an error for each imported file that decides what we configure, or
// that cannot be used. The former match [doctor.ErrOverridden].
func (t *target) imports(f containerdconfig.File, node containerdconfig.Node) []error {
	var problems []error
	for _, pattern := range f.Imports {
		if !filepath.IsAbs(pattern) {
			pattern = filepath.Join(filepath.Dir(t.config), pattern)
		}
		names, err := filepath.Glob(pattern)
		if err != nil {
			problems = append(problems, fmt.Errorf("imports of %s: %s: %w", t.config, pattern, err))
		}
		for _, name := range names {
			text, _, err := readFile(name)
			var tables []string
			if err == nil {
				tables, err = containerdconfig.Overrides(text, f.Version, node)
				err = locate(name, err)
			}
			if err != nil {
				problems = append(problems, err)
			}
			for _, table := range tables {
				problems = append(problems, fmt.Errorf("%s, which %s imports, has %s, which %w: move that table to %[2]s", name, t.config, table, doctor.ErrOverridden))
			}
		}
	}
	return problems
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

func (t *target) service() service.Service {
	switch {
	case t.restartBy != "":
		return service.Command(t.restartBy)
	case t.restartMode == restartBySignal:
		return service.Behind(t.criSocket, containerdProgram)
	}
	return service.Named(t.serviceName)
}

// isOutdated reports whether the running containerd is known to have started before
// the file at path was changed.
func (t *target) isOutdated(ctx context.Context, path string) bool {
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
	if err != nil {
		return false
	}
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) { // It was removed from there.
		info, err = os.Stat(filepath.Dir(path))
	}
	return err == nil && isBetween(info.ModTime(), started, time.Now())
}

// isBetween excludes a time in the future, of before the clock was set back.
func isBetween(at, after, now time.Time) bool { return at.After(after) && !at.After(now) }

// anyHandlers accepts what containerd has loaded.
func anyHandlers([]containerdconfig.Handler) error { return nil }

// restartAndCheck restarts containerd and waits until ready accepts its handlers.
func (t *target) restartAndCheck(ctx context.Context, ready func([]containerdconfig.Handler) error) error {
	ctx, cancel := context.WithTimeout(ctx, t.restartLimit)
	defer cancel()
	if err := t.service().Restart(ctx); err != nil {
		return err
	}
	for {
		handlers, err := t.loaded(ctx)
		if err == nil {
			err = ready(handlers)
		}
		if err == nil {
			return nil
		}
		if status.Code(err) == codes.Unimplemented { // That will not change.
			return fmt.Errorf("containerd restarted without its CRI plugin: %w", err)
		}
		select {
		case <-ctx.Done():
			hint := ""
			if t.restartBy == "" && t.restartMode == restartBySignal && status.Code(err) == codes.Unavailable {
				hint = "; if no supervisor starts containerd again, start it, and do not use --restart-mode " + restartBySignal
			}
			return fmt.Errorf("containerd was restarted by %s and has not loaded its configuration after %v: %w%s", t.service(), t.restartLimit, err, hint)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// restartOrRestore restarts containerd. If that fails, it calls restore, which
// restores the configuration, and restarts again; the error describes both.
func (t *target) restartOrRestore(ctx context.Context, out io.Writer, ready func([]containerdconfig.Handler) error, restore func() error) error {
	err := t.restartAndCheck(ctx, ready)
	if err == nil {
		fmt.Fprintln(out, "restarted containerd")
		return nil
	}
	// Even after a signal: a node without containerd is worse.
	ctx = context.WithoutCancel(ctx)
	if restoreErr := restore(); restoreErr != nil {
		return fmt.Errorf("%w; restore %s: %w", err, t.config, restoreErr)
	}
	if againErr := t.restartAndCheck(ctx, anyHandlers); againErr != nil {
		return fmt.Errorf("%w; %s was restored; %w", err, t.config, againErr)
	}
	return fmt.Errorf("%w; %s was restored, and containerd runs with it", err, t.config)
}
