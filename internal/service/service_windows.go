package service

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"
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
	return n.open("look up", func(_ *mgr.Mgr, service *mgr.Service) error {
		// At most 8 KiB: https://learn.microsoft.com/windows/win32/api/winsvc/nf-winsvc-queryserviceconfigw
		var buffer [1024]uint64
		config, size := (*windows.QUERY_SERVICE_CONFIG)(unsafe.Pointer(&buffer)), uint32(unsafe.Sizeof(buffer))
		if err := windows.QueryServiceConfig(service.Handle, config, size, &size); err != nil {
			return fmt.Errorf("look up %s: %w", n, err)
		}
		return checkNative(n.name, windows.UTF16PtrToString(config.BinaryPathName))
	})
}

// Dependents returns the running services that depend on a service, such as a kubelet.
// Windows does not stop the service before them.
func Dependents(name string) (dependents []string, err error) {
	n := named{name: name}
	err = n.open("look up", func(_ *mgr.Mgr, service *mgr.Service) error {
		if dependents, err = service.ListDependentServices(svc.Active); err != nil {
			return fmt.Errorf("look up %s: list dependent services: %w", n, err)
		}
		return nil
	})
	return dependents, err
}

// open calls do with the service.
func (n named) open(action string, do func(*mgr.Mgr, *mgr.Service) error) (err error) {
	manager, err := mgr.Connect()
	if err != nil {
		return fmt.Errorf("%s %s: connect to the service manager: %w", action, n, err)
	}
	defer func() { err = errors.Join(err, manager.Disconnect()) }()
	service, err := manager.OpenService(n.name)
	if err != nil {
		return fmt.Errorf("%s %s: %w; name the service of containerd with --service", action, n, err)
	}
	defer func() { err = errors.Join(err, service.Close()) }()
	return do(manager, service)
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
	dependents := slices.Concat(running, stopped)
	err = n.open("restart", func(manager *mgr.Mgr, service *mgr.Service) error {
		var err error
		for _, name := range running {
			if err = with(manager, name, func(s *mgr.Service) error { return stop(ctx, s) }); err != nil {
				break
			}
		}
		if err == nil {
			err = stop(ctx, service)
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), startLimit)
		defer cancel()
		err = joinLine(err, start(ctx, service))
		for _, name := range slices.Backward(dependents) {
			err = joinLine(err, with(manager, name, func(s *mgr.Service) error { return start(ctx, s) }))
		}
		return err
	})
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

// start starts a service. One that is still stopping is started when it has stopped.
func start(ctx context.Context, service *mgr.Service) error {
	status, err := service.Query()
	for err == nil && status.State == svc.StopPending {
		select {
		case <-ctx.Done():
			return fmt.Errorf("start service %s: it is still stopping: %w", service.Name, context.Cause(ctx))
		case <-time.After(poll):
		}
		status, err = service.Query()
	}
	if err == nil {
		err = service.Start()
	}
	if err != nil && !errors.Is(err, windows.ERROR_SERVICE_ALREADY_RUNNING) {
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
