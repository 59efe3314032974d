package service

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/svc"
	"golang.org/x/sys/windows/svc/mgr"
)

// poll is the interval of queries for a service's state.
const poll = 200 * time.Millisecond

type named string

func (n named) String() string { return "the service " + string(n) }

// Check returns an error unless the service runs containerd.exe itself: see
// [checkNative].
func (n named) Check(context.Context) (err error) {
	manager, err := mgr.Connect()
	if err != nil {
		return fmt.Errorf("look up %s: connect to the service manager: %w", n, err)
	}
	defer func() { err = errors.Join(err, manager.Disconnect()) }()
	service, err := manager.OpenService(string(n))
	if err != nil {
		return fmt.Errorf("look up %s: %w; name the service of containerd with --service", n, err)
	}
	defer func() { err = errors.Join(err, service.Close()) }()
	config, err := service.Config()
	if err != nil {
		return fmt.Errorf("look up %s: %w", n, err)
	}
	return checkNative(string(n), config.BinaryPathName)
}

// Restart restarts the service and the running services that depend on it, such as a
// kubelet, without which Windows does not stop it.
func (n named) Restart(ctx context.Context) (err error) {
	manager, err := mgr.Connect()
	if err != nil {
		return fmt.Errorf("restart %s: connect to the service manager: %w", n, err)
	}
	defer func() { err = errors.Join(err, manager.Disconnect()) }()
	service, err := manager.OpenService(string(n))
	if err != nil {
		return fmt.Errorf("restart %s: %w; name the service of containerd with --service", n, err)
	}
	defer func() { err = errors.Join(err, service.Close()) }()
	dependents, err := service.ListDependentServices(svc.Active)
	if err != nil {
		return fmt.Errorf("restart %s: list dependent services: %w", n, err)
	}
	for _, name := range dependents {
		if err = with(manager, name, func(s *mgr.Service) error { return stop(ctx, s) }); err != nil {
			break
		}
	}
	if err == nil {
		err = stop(ctx, service)
	}
	// Start the stopped services in reverse order, also after an error. A service that
	// has not stopped yet cannot be started.
	err = joinLine(err, start(service))
	for i := len(dependents) - 1; i >= 0; i-- {
		err = joinLine(err, with(manager, dependents[i], start))
	}
	if err != nil {
		return fmt.Errorf("restart %s: %w", n, err)
	}
	return nil
}

// joinLine is [errors.Join] on one line.
func joinLine(a, b error) error {
	if a == nil || b == nil {
		return errors.Join(a, b)
	}
	return fmt.Errorf("%w; %w", a, b)
}

func with(manager *mgr.Mgr, name string, do func(*mgr.Service) error) error {
	service, err := manager.OpenService(name)
	if err != nil {
		return fmt.Errorf("open service %s: %w", name, err)
	}
	return errors.Join(do(service), service.Close())
}

// stop stops a service and waits until it has stopped.
func stop(ctx context.Context, service *mgr.Service) error {
	status, err := service.Control(svc.Stop)
	switch {
	case errors.Is(err, windows.ERROR_SERVICE_NOT_ACTIVE):
		return nil
	case errors.Is(err, windows.ERROR_SERVICE_CANNOT_ACCEPT_CTRL):
		// An earlier attempt is stopping it.
		status, err = service.Query()
	}
	for err == nil && status.State != svc.Stopped {
		select {
		case <-ctx.Done():
			return fmt.Errorf("stop service %s: %w", service.Name, context.Cause(ctx))
		case <-time.After(poll):
		}
		status, err = service.Query()
	}
	if err != nil {
		return fmt.Errorf("stop service %s: %w", service.Name, err)
	}
	return nil
}

func start(service *mgr.Service) error {
	if err := service.Start(); err != nil && !errors.Is(err, windows.ERROR_SERVICE_ALREADY_RUNNING) {
		return fmt.Errorf("start service %s: %w", service.Name, err)
	}
	return nil
}

// shell returns a command line for cmd.exe, without Go's quoting.
func shell(ctx context.Context, command string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "cmd.exe")
	cmd.SysProcAttr = &syscall.SysProcAttr{CmdLine: `cmd.exe /S /C "` + command + `"`}
	return cmd
}
