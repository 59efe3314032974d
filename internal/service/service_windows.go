package service

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/registry"
	"golang.org/x/sys/windows/svc"
	"golang.org/x/sys/windows/svc/mgr"
)

const (
	// poll is the interval of queries for a service's state.
	poll = 200 * time.Millisecond
	// startLimit bounds the start of the services that were stopped. It does not end with
	// the caller's context: a node without containerd and a kubelet is worse.
	startLimit = time.Minute
)

type named string

// Named returns the named service of the service manager. Its restart stops the running
// services that depend on it, such as a kubelet, and starts them again. It also starts those
// that start with the system: a restart that was killed may have left them stopped.
func Named(name string) Service { return named(name) }

func (n named) String() string { return "the service " + string(n) }

// Check returns an error unless the service runs containerd.exe itself: see
// [checkNative].
func (n named) Check(context.Context) error {
	line, err := commandLineOf(string(n))
	if err != nil {
		return n.notFound(err)
	}
	return checkNative(string(n), line)
}

func (n named) notFound(err error) error {
	return fmt.Errorf("look up %s: %w; name the service of containerd with --service", n, err)
}

type signaled struct{ program string }

// BySignal works on Linux only: elsewhere its restarts fail.
func BySignal(_, program string) Service { return signaled{program} }

func (s signaled) String() string { return "a signal to " + s.program }

func (s signaled) Restart(ctx context.Context) error { return s.Check(ctx) }

func (s signaled) Check(context.Context) error {
	return fmt.Errorf("restart by %s: %w", s, errors.ErrUnsupported)
}

// readKey calls read with the registry key of a service. Wine's service manager cannot be asked
// for the whole configuration.
func readKey(name string, read func(registry.Key) error) error {
	key, err := registry.OpenKey(registry.LOCAL_MACHINE, `SYSTEM\CurrentControlSet\Services\`+name, registry.QUERY_VALUE)
	if err != nil {
		return err
	}
	return errors.Join(read(key), key.Close())
}

// commandLineOf returns the command line of a service.
func commandLineOf(name string) (line string, err error) {
	err = readKey(name, func(key registry.Key) error {
		value, kind, err := key.GetStringValue("ImagePath")
		if err == nil && kind == registry.EXPAND_SZ {
			value, err = registry.ExpandString(value) // As the service manager does.
		}
		line = value
		return err
	})
	return line, err
}

// startsWithSystem reports whether a service starts with the system.
func startsWithSystem(name string) bool {
	var startType uint64
	err := readKey(name, func(key registry.Key) (err error) {
		startType, _, err = key.GetIntegerValue("Start")
		return err
	})
	return err == nil && startType == mgr.StartAutomatic
}

// dependents returns the services of a state that depend on the service, in the order in which
// they stop. Windows does not stop the service before those that run.
func (n named) dependents(state svc.ActivityStatus) (names []string, err error) {
	err = open(string(n), func(service *mgr.Service) error {
		names, err = service.ListDependentServices(state)
		return err
	})
	if err != nil {
		return nil, n.notFound(err)
	}
	return names, nil
}

// connect calls do with the service manager.
func connect(do func(*mgr.Mgr) error) (err error) {
	manager, err := mgr.Connect()
	if err != nil {
		return fmt.Errorf("connect to the service manager: %w", err)
	}
	defer func() { err = errors.Join(err, manager.Disconnect()) }()
	return do(manager)
}

// open calls do with a service.
func open(name string, do func(*mgr.Service) error) error {
	return connect(func(manager *mgr.Mgr) error {
		service, err := manager.OpenService(name)
		if err != nil {
			return err
		}
		return errors.Join(do(service), service.Close())
	})
}

// Restart restarts the service and the running services that depend on it. Those are
// started whatever happens.
func (n named) Restart(ctx context.Context) error {
	all, err := n.dependents(svc.AnyActivity)
	running, runningErr := n.dependents(svc.Active)
	if err = errors.Join(err, runningErr); err != nil {
		return err
	}
	for _, name := range append(slices.Clone(running), string(n)) {
		if err = stop(ctx, name); err != nil {
			break
		}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), startLimit)
	defer cancel()
	for _, name := range slices.Backward(append(all, string(n))) {
		wasRunning := name == string(n) || slices.Contains(running, name)
		if !wasRunning && !startsWithSystem(name) {
			continue
		}
		switch startErr := start(ctx, name); {
		case startErr == nil || !wasRunning: // It may have stopped for another reason.
		case err == nil:
			err = startErr
		default:
			err = fmt.Errorf("%w; %w", err, startErr)
		}
	}
	if err != nil {
		return fmt.Errorf("restart %s: %w", n, err)
	}
	return nil
}

// stop stops a service and waits until it has stopped.
func stop(ctx context.Context, name string) error {
	err := open(name, func(service *mgr.Service) error {
		_, err := service.Control(svc.Stop)
		switch {
		case errors.Is(err, windows.ERROR_SERVICE_NOT_ACTIVE):
			return nil
		case err != nil && !errors.Is(err, windows.ERROR_SERVICE_CANNOT_ACCEPT_CTRL): // An earlier attempt is stopping it.
			return err
		}
		_, err = await(ctx, service, func(state svc.State) bool { return state != svc.Stopped })
		return err
	})
	if err != nil {
		return fmt.Errorf("stop service %s: %w", name, err)
	}
	return nil
}

// start starts a service. One that is still stopping is started when it has stopped.
func start(ctx context.Context, name string) error {
	err := open(name, func(service *mgr.Service) error {
		_, err := await(ctx, service, func(state svc.State) bool { return state == svc.StopPending })
		if err == nil {
			err = service.Start()
		}
		return err
	})
	if err != nil && !errors.Is(err, windows.ERROR_SERVICE_ALREADY_RUNNING) {
		return fmt.Errorf("start service %s: %w", name, err)
	}
	return nil
}

// await waits while a service is in a state that isPending accepts.
func await(ctx context.Context, service *mgr.Service, isPending func(svc.State) bool) (svc.Status, error) {
	for {
		status, err := service.Query()
		if err != nil || !isPending(status.State) {
			return status, err
		}
		select {
		case <-ctx.Done():
			return status, fmt.Errorf("it is %s: %w", stateNames[status.State], context.Cause(ctx))
		case <-time.After(poll):
		}
	}
}

//nolint:gochecknoglobals // A constant.
var stateNames = map[svc.State]string{
	svc.Stopped: "stopped", svc.StartPending: "starting", svc.StopPending: "stopping", svc.Running: "running",
}

// shell returns a command line for cmd.exe, without Go's quoting.
func shell(ctx context.Context, command string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "cmd.exe")
	cmd.SysProcAttr = &syscall.SysProcAttr{CmdLine: `cmd.exe /S /C "` + command + `"`}
	return cmd
}
