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

type named struct {
	name       string
	dependents []string
}

// Named returns the named service of the service manager. Its restart stops the running
// services that depend on it and starts them again, and also those of dependents that an
// earlier restart left stopped.
func Named(name string, dependents ...string) Service { return named{name, dependents} }

func (n named) String() string { return "the service " + n.name }

// Check returns an error unless the service runs containerd.exe itself: see
// [checkNative].
func (n named) Check(context.Context) error {
	line, err := commandLineOf(n.name)
	if err != nil {
		return n.notFound(err)
	}
	return checkNative(n.name, line)
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

// commandLineOf returns the command line of a service. Wine's service manager cannot be asked
// for the whole configuration.
func commandLineOf(name string) (line string, err error) {
	key, err := registry.OpenKey(registry.LOCAL_MACHINE, `SYSTEM\CurrentControlSet\Services\`+name, registry.QUERY_VALUE)
	if err != nil {
		return "", err
	}
	line, kind, err := key.GetStringValue("ImagePath")
	if err == nil && kind == registry.EXPAND_SZ {
		line, err = registry.ExpandString(line) // As the service manager does.
	}
	return line, errors.Join(err, key.Close())
}

// Dependents returns the running services that depend on a service, such as a kubelet.
// Windows does not stop the service before them.
func Dependents(name string) (dependents []string, err error) {
	err = open(name, func(service *mgr.Service) error {
		dependents, err = service.ListDependentServices(svc.Active)
		return err
	})
	if err != nil {
		return nil, named{name: name}.notFound(err)
	}
	return dependents, nil
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
	running, err := Dependents(n.name)
	if err != nil {
		return err
	}
	// Windows lists them in the order in which they stop. Those that an earlier restart
	// left stopped come from the caller, in that order too.
	stopped := slices.DeleteFunc(slices.Clone(n.dependents), func(name string) bool { return slices.Contains(running, name) })
	for _, name := range slices.Concat(running, []string{n.name}) {
		if err = stop(ctx, name); err != nil {
			break
		}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), startLimit)
	defer cancel()
	for _, name := range slices.Backward(slices.Concat(running, stopped, []string{n.name})) {
		switch startErr := start(ctx, name); {
		case err == nil:
			err = startErr
		case startErr != nil:
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
