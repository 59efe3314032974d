package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"directx-nri/internal/cli"
	"directx-nri/internal/containerdconfig"
	"directx-nri/internal/localgrpc"
	"directx-nri/internal/paths"
	"directx-nri/internal/service"
)

// containerdProgram is what containerd's process is called.
const containerdProgram = "containerd"

// askTimeout is how long containerd may take to answer a question whose answer
// we can do without.
const askTimeout = 2 * time.Second

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
	flags.StringVar(&t.config, "config", places.ContainerdConfig, "containerd's configuration file")
	flags.StringVar(&t.criSocket, "cri-socket", places.CRI, "containerd's CRI socket, to see what it has loaded")
	flags.IntVar(&t.major, "containerd-major", 0, "containerd's major version, 1 or 2, which decides how it reads the file; 0 asks the one that runs, and without an answer takes it from the file")
}

// Ways to restart containerd.
const (
	restartByService = "service"
	restartBySignal  = "signal"
)

// addChangeFlags adds those of a command that changes the file.
func (t *target) addChangeFlags(command *cobra.Command) {
	flags := command.Flags()
	flags.StringVar(&t.stateDir, "state-dir", paths.Default().State, "folder in which it is kept what was changed")
	flags.BoolVar(&t.restart, "restart", false, "restart containerd and see that it comes back with the new file; otherwise put the old one back")
	flags.StringVar(&t.restartMode, "restart-mode", restartByService, "how to restart it: "+restartByService+", which its service manager does, or on Linux "+restartBySignal+", for pods: it is told to end, and what supervises it starts it again")
	completeValues(command, "restart-mode", restartByService, restartBySignal)
	flags.StringVar(&t.serviceName, "service", "containerd", "containerd's service, of the Windows service manager or systemd")
	flags.StringVar(&t.restartBy, "restart-command", "", "shell command that restarts containerd, where it is no such service")
	flags.DurationVar(&t.restartLimit, "restart-timeout", time.Minute, "how long containerd may take to come back")
}

func (t *target) check() error {
	if t.major < 0 || t.major > 2 {
		return cli.Usage("--containerd-major %d is neither 1 nor 2, nor 0", t.major)
	}
	if t.restartBy != "" && !t.restart {
		return cli.Usage("--restart-command has no use without --restart")
	}
	switch {
	case t.restartMode == "" || t.restartMode == restartByService: // Not every command has the flag.
	case t.restartMode != restartBySignal:
		return cli.Usage("--restart-mode %q is neither %s nor %s", t.restartMode, restartByService, restartBySignal)
	case t.os == "windows":
		return cli.Usage("--restart-mode %s is there on Linux only: leave it out on Windows", restartBySignal)
	case t.restartBy != "":
		return cli.Usage("--restart-command and --restart-mode %s are two ways to restart: give one of them", restartBySignal)
	}
	return nil
}

// node tells how containerd reads its file.
func (t *target) node(ctx context.Context) containerdconfig.Node {
	node := containerdconfig.Node{OS: t.os, Major: t.major}
	if node.Major != 0 {
		return node
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	connection, err := containerdconfig.Dial(t.criSocket)
	if err != nil {
		return node
	}
	defer connection.Close()
	// Without an answer the file's version decides.
	if version, err := containerdconfig.RunningVersion(ctx, connection); err == nil {
		node.Major = containerdconfig.Major(version)
	}
	return node
}

// loaded returns the handlers that the running containerd has.
func (t *target) loaded(ctx context.Context) ([]containerdconfig.Handler, error) {
	connection, err := containerdconfig.Dial(t.criSocket)
	if err != nil {
		return nil, err
	}
	defer connection.Close()
	return containerdconfig.LoadedHandlers(ctx, connection)
}

// errOverridden tells an error of [target.imports] that is about a sound file.
var errOverridden = errors.New("takes the place of what is configured there")

// imports returns an error when a file that the configuration imports decides
// what we configure.
func (t *target) imports(f containerdconfig.File, node containerdconfig.Node) error {
	var problems []error
	for _, pattern := range f.Imports {
		if !filepath.IsAbs(pattern) {
			pattern = filepath.Join(filepath.Dir(t.config), pattern)
		}
		names, err := filepath.Glob(pattern)
		if err != nil {
			problems = append(problems, fmt.Errorf("imports of %s: %s: %w", t.config, pattern, err))
			continue
		}
		for _, name := range names {
			text, _, err := readFile(name)
			if err != nil {
				problems = append(problems, err)
				continue
			}
			tables, err := containerdconfig.Overrides(text, f.Version, node)
			if err != nil {
				problems = append(problems, locate(name, err))
			}
			for _, table := range tables {
				problems = append(problems, fmt.Errorf("%s is imported by %s and has %s, which %w: move that table to %[2]s", name, t.config, table, errOverridden))
			}
		}
	}
	return errors.Join(problems...)
}

// locate adds a file's name to an error, as compilers do for one with a place.
func locate(file string, err error) error {
	var syntax *containerdconfig.SyntaxError
	if errors.As(err, &syntax) {
		return fmt.Errorf("%s:%w", file, err)
	}
	return fmt.Errorf("%s: %w", file, err)
}

// service returns containerd's service.
func (t *target) service() service.Service {
	switch {
	case t.restartBy != "":
		return service.Command(t.restartBy)
	case t.restartMode == restartBySignal:
		return service.Behind(t.criSocket, containerdProgram)
	}
	return service.Named(t.serviceName)
}

// isOutdated tells that the running containerd is known to have been started
// before the file at path became what it is, so that it has another one in force.
// Where its process cannot be seen that is not known.
func (t *target) isOutdated(ctx context.Context, path string) bool {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	process, err := localgrpc.SocketOwner(ctx, t.criSocket)
	if err != nil {
		return false
	}
	defer func() { _ = process.Close() }()
	// Where systemd made the socket, systemd is the process.
	if is, err := process.Is(containerdProgram); err != nil || !is {
		return false
	}
	started, err := process.Started()
	if err != nil {
		return false
	}
	changed, ok := statusChanged(path)
	return ok && isBetween(changed, started, time.Now())
}

// isBetween leaves out a time that is still to come: the clock has been set back
// since, and would have every start be before it.
func isBetween(at, after, now time.Time) bool { return at.After(after) && !at.After(now) }

// restartAndCheck restarts containerd and waits until ready is content with
// what it has loaded.
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
		// containerd runs, and its CRI plugin has not come up: it never will.
		if status.Code(err) == codes.Unimplemented {
			return fmt.Errorf("containerd is back without its CRI plugin: %w", err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("containerd was restarted by %s and is not back as configured after %v: %w%s", t.service(), t.restartLimit, err, t.ifNotStarted(err))
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// ifNotStarted is what to do where a signal has ended containerd and nothing
// listens since.
func (t *target) ifNotStarted(err error) string {
	if t.restartBy != "" || t.restartMode != restartBySignal || status.Code(err) != codes.Unavailable {
		return ""
	}
	return "; if nothing starts containerd when it has ended, start it on the node, and do not use --restart-mode " + restartBySignal + " there"
}

// restartOrPutBack restarts containerd. When it does not come back it puts the
// files of before back by back, restarts again and returns an error that tells
// both.
func (t *target) restartOrPutBack(ctx context.Context, out io.Writer, ready func([]containerdconfig.Handler) error, back func() error) error {
	err := t.restartAndCheck(ctx, ready)
	if err == nil {
		fmt.Fprintf(out, "containerd is restarted\n")
		return nil
	}
	// Also when we are told to end: a node without containerd is worse.
	ctx = context.WithoutCancel(ctx)
	if backErr := back(); backErr != nil {
		return fmt.Errorf("%w; and the old %s could not be put back: %w", err, t.config, backErr)
	}
	if againErr := t.restartAndCheck(ctx, func([]containerdconfig.Handler) error { return nil }); againErr != nil {
		return fmt.Errorf("%w; the old %s is back, and with it too: %w", err, t.config, againErr)
	}
	return fmt.Errorf("%w; the old %s is back, and containerd runs with it", err, t.config)
}
