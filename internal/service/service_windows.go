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
	// pollInterval is the interval of queries for a service's state.
	pollInterval = 200 * time.Millisecond
	// startTimeout bounds the start of the services that were stopped. The end of the caller's
	// context does not interrupt it, because the node needs containerd and the kubelet.
	startTimeout = time.Minute
)

type managedService string

// Named returns the named service of the service manager. Its restart stops the running
// services that depend on it, such as the kubelet, and starts them again. It also starts the
// dependent services that start with the system, because a restart that was killed may have
// left them stopped.
func Named(name string) Service { return managedService(name) }

// NameBySocket returns "".
func NameBySocket(context.Context, string) string { return "" }

func (s managedService) String() string { return "the service " + string(s) }

// Check returns an error unless the service runs containerd.exe itself: see [checkNative].
func (s managedService) Check(context.Context) error {
	line, err := commandLineOf(string(s))
	if err != nil {
		return s.lookupError(err)
	}
	return checkNative(string(s), line)
}

func (s managedService) lookupError(err error) error {
	return fmt.Errorf("look up %s: %w; set --service to the name of containerd's service", s, err)
}

// send returns an error: Windows has no such signals.
func (s signaledProcess) send(context.Context, syscall.Signal) error {
	return fmt.Errorf("restart by %s: %w", s, errors.ErrUnsupported)
}

// openKey opens the registry key of a service. The service manager of Wine does not return the whole
// configuration.
func openKey(name string) (registry.Key, error) {
	return registry.OpenKey(registry.LOCAL_MACHINE, `SYSTEM\CurrentControlSet\Services\`+name, registry.QUERY_VALUE)
}

func commandLineOf(name string) (string, error) {
	key, err := openKey(name)
	if err != nil {
		return "", err
	}
	defer func() { _ = key.Close() }()
	line, kind, err := key.GetStringValue("ImagePath")
	if err == nil && kind == registry.EXPAND_SZ {
		return registry.ExpandString(line) // As the service manager does.
	}
	return line, err
}

func startsWithSystem(name string) bool {
	key, err := openKey(name)
	if err != nil {
		return false
	}
	defer func() { _ = key.Close() }()
	startType, _, err := key.GetIntegerValue("Start")
	return err == nil && startType == mgr.StartAutomatic
}

// dependents returns the services in a state that depend on the service, in the order in which they
// must be stopped. Windows does not stop a service while dependent services run.
func (s managedService) dependents(state svc.ActivityStatus) (names []string, err error) {
	err = withService(string(s), func(service *mgr.Service) error {
		names, err = service.ListDependentServices(state)
		return err
	})
	if err != nil {
		return nil, s.lookupError(err)
	}
	return names, nil
}

func withManager(do func(*mgr.Mgr) error) (err error) {
	manager, err := mgr.Connect()
	if err != nil {
		return fmt.Errorf("connect to the service manager: %w", err)
	}
	defer func() { err = errors.Join(err, manager.Disconnect()) }()
	return do(manager)
}

func withService(name string, do func(*mgr.Service) error) error {
	return withManager(func(manager *mgr.Mgr) error {
		service, err := manager.OpenService(name)
		if err != nil {
			return err
		}
		return errors.Join(do(service), service.Close())
	})
}

// Restart restarts the service and the running services that depend on it. It starts them even
// after an error.
func (s managedService) Restart(ctx context.Context) error {
	all, err := s.dependents(svc.AnyActivity)
	running, runningErr := s.dependents(svc.Active)
	if err = errors.Join(err, runningErr); err != nil {
		return err
	}
	for _, name := range append(slices.Clone(running), string(s)) {
		if err = stop(ctx, name); err != nil {
			break
		}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), startTimeout)
	defer cancel()
	for _, name := range slices.Backward(append(all, string(s))) {
		wasRunning := name == string(s) || slices.Contains(running, name)
		if !wasRunning && !startsWithSystem(name) {
			continue
		}
		startErr := start(ctx, name)
		switch {
		case startErr == nil || !wasRunning: // A service that did not run may have another problem.
		case err == nil:
			err = startErr
		default:
			err = fmt.Errorf("%w; %w", err, startErr)
		}
	}
	if err != nil {
		return fmt.Errorf("restart %s: %w", s, err)
	}
	return nil
}

func stop(ctx context.Context, name string) error {
	err := withService(name, func(service *mgr.Service) error {
		// A service that is starting does not accept the control.
		// https://learn.microsoft.com/windows/win32/api/winsvc/nf-winsvc-controlservice
		if _, err := waitWhile(ctx, service, func(state svc.State) bool { return state == svc.StartPending }); err != nil {
			return err
		}
		_, err := service.Control(svc.Stop)
		switch {
		case errors.Is(err, windows.ERROR_SERVICE_NOT_ACTIVE):
			return nil
		case err != nil && !errors.Is(err, windows.ERROR_SERVICE_CANNOT_ACCEPT_CTRL): // An earlier attempt is stopping it.
			return err
		}
		_, err = waitWhile(ctx, service, func(state svc.State) bool { return state != svc.Stopped })
		return err
	})
	if err != nil {
		return fmt.Errorf("stop service %s: %w", name, err)
	}
	return nil
}

// start starts a service. If it is stopping, start waits until it has stopped.
func start(ctx context.Context, name string) error {
	err := withService(name, func(service *mgr.Service) error {
		if _, err := waitWhile(ctx, service, func(state svc.State) bool { return state == svc.StopPending }); err != nil {
			return err
		}
		return service.Start()
	})
	if err != nil && !errors.Is(err, windows.ERROR_SERVICE_ALREADY_RUNNING) {
		return fmt.Errorf("start service %s: %w", name, err)
	}
	return nil
}

// waitWhile waits while a service is in a state that isPending accepts.
func waitWhile(ctx context.Context, service *mgr.Service, isPending func(svc.State) bool) (svc.Status, error) {
	for {
		status, err := service.Query()
		if err != nil || !isPending(status.State) {
			return status, err
		}
		select {
		case <-ctx.Done():
			return status, fmt.Errorf("it is %s: %w", stateNames[status.State], context.Cause(ctx))
		case <-time.After(pollInterval):
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
