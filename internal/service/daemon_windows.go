package service

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/registry"
	"golang.org/x/sys/windows/svc"
	"golang.org/x/sys/windows/svc/eventlog"
	"golang.org/x/sys/windows/svc/mgr"

	"github.com/directx-nri/directx-nri/internal/winpath"
)

// timeout bounds the wait for a service that is started or stopped.
const timeout = time.Minute

// runAsService is the first argument of a process that the service manager starts.
const runAsService = "--run-as-service"

// open calls do with the service, which is nil if there is none. One that runs another
// program, such as nssm, is [ErrForeign].
func (d Daemon) open(do func(*mgr.Mgr, *mgr.Service) error) (err error) {
	manager, err := mgr.Connect()
	if err != nil {
		return fmt.Errorf("connect to the service manager: %w", err)
	}
	defer func() { err = errors.Join(err, manager.Disconnect()) }()
	service, err := manager.OpenService(d.Name)
	if errors.Is(err, windows.ERROR_SERVICE_DOES_NOT_EXIST) {
		return do(manager, nil)
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, service.Close()) }()
	// Wine's service manager cannot be asked for the whole configuration.
	key, err := registry.OpenKey(registry.LOCAL_MACHINE, `SYSTEM\CurrentControlSet\Services\`+d.Name, registry.QUERY_VALUE)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, key.Close()) }()
	commandLine, _, err := key.GetStringValue("ImagePath")
	if err != nil {
		return err
	}
	if program := programOf(commandLine); !strings.EqualFold(winpath.Base(program), d.Name+".exe") {
		return fmt.Errorf("it runs %s: %w", program, ErrForeign)
	}
	return do(manager, service)
}

func (d Daemon) install(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return d.open(func(manager *mgr.Mgr, service *mgr.Service) (err error) {
		args := append([]string{runAsService}, d.Args...)
		config := mgr.Config{
			ServiceType: windows.SERVICE_WIN32_OWN_PROCESS, StartType: mgr.StartAutomatic, ErrorControl: mgr.ErrorNormal,
			BinaryPathName: windows.ComposeCommandLine(append([]string{d.Program}, args...)), DisplayName: d.Name, Description: d.Description,
		}
		if service != nil {
			err = stop(ctx, service)
		} else if service, err = manager.CreateService(d.Name, d.Program, config, args...); err == nil {
			defer func() { err = errors.Join(err, service.Close()) }()
		}
		if err != nil {
			return err
		}
		config.DelayedAutoStart = true
		for _, set := range []func() error{
			func() error { return service.UpdateConfig(config) },
			func() error { return service.SetRecoveryActions(recovery(), uint32(time.Hour.Seconds())) },
			func() error { return service.SetRecoveryActionsOnNonCrashFailures(true) },
		} {
			// Wine's service manager has no delayed start and no recovery.
			if err := set(); err != nil && !errors.Is(err, windows.ERROR_INVALID_LEVEL) {
				return err
			}
		}
		if err := installEventSource(d.Name); err != nil {
			return err
		}
		if err := start(ctx, service); err != nil {
			return err
		}
		return awaitRunning(ctx, service)
	})
}

// recovery returns the actions after a daemon has ended without having been stopped:
// the last one is repeated.
func recovery() []mgr.RecoveryAction {
	var actions []mgr.RecoveryAction
	for _, delay := range []time.Duration{2 * time.Second, 5 * time.Second, 30 * time.Second} {
		actions = append(actions, mgr.RecoveryAction{Type: mgr.ServiceRestart, Delay: delay})
	}
	return actions
}

// installEventSource registers the daemon as a source of the Application event log.
func installEventSource(name string) error {
	err := eventlog.InstallAsEventCreate(name, eventlog.Error|eventlog.Warning|eventlog.Info)
	if err != nil && !strings.Contains(err.Error(), "already exists") {
		return fmt.Errorf("register the event log source: %w", err)
	}
	return nil
}

func awaitRunning(ctx context.Context, service *mgr.Service) error {
	for {
		status, err := service.Query()
		if err != nil || status.State == svc.Running {
			return err
		}
		if status.State == svc.Stopped {
			return fmt.Errorf("it ended with status %d: see the event log", max(status.Win32ExitCode, status.ServiceSpecificExitCode))
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("it has not started: %w", context.Cause(ctx))
		case <-time.After(poll):
		}
	}
}

func (d Daemon) uninstall(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return d.open(func(_ *mgr.Mgr, service *mgr.Service) error {
		if service == nil {
			return nil
		}
		if err := stop(ctx, service); err != nil {
			return err
		}
		err := eventlog.Remove(d.Name)
		if errors.Is(err, registry.ErrNotExist) {
			err = nil
		}
		return errors.Join(service.Delete(), err)
	})
}

func (d Daemon) status(context.Context) (state string, err error) {
	err = d.open(func(_ *mgr.Mgr, service *mgr.Service) error {
		if service == nil {
			state = NotInstalled
			return nil
		}
		status, err := service.Query()
		state = map[svc.State]string{
			svc.Stopped: "stopped", svc.StartPending: "starting", svc.StopPending: "stopping", svc.Running: "running",
		}[status.State]
		return err
	})
	return state, err
}

// Run runs a daemon that the service manager has started, with the event log as its
// log. ok is false for a process that was started another way.
func Run(name string, main Main) (status int, ok bool) {
	if len(os.Args) < 2 || os.Args[1] != runAsService {
		return 0, false
	}
	os.Args = slices.Delete(os.Args, 1, 2)
	log := io.Discard
	if events, err := eventlog.Open(name); err == nil {
		defer func() { _ = events.Close() }()
		log = eventWriter{events}
	}
	h := &handler{main: main, log: log}
	if err := svc.Run(name, h); err != nil {
		fmt.Fprintf(log, "level=error msg=%q\n", err)
		return 1, true
	}
	return h.status, true
}

// handler is a daemon as the service manager controls it.
type handler struct {
	main   Main
	log    io.Writer
	status int
}

// Execute implements [svc.Handler].
func (h *handler) Execute(_ []string, requests <-chan svc.ChangeRequest, changes chan<- svc.Status) (specific bool, status uint32) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	running := svc.Status{State: svc.Running, Accepts: svc.AcceptStop | svc.AcceptShutdown}
	ended := make(chan int, 1)
	go func() { ended <- h.main(ctx, h.log) }()
	changes <- running
	for {
		select {
		case h.status = <-ended:
			// A status other than 0 makes the service manager restart it.
			return h.status != 0, uint32(h.status)
		case request := <-requests:
			switch request.Cmd {
			case svc.Interrogate:
				changes <- request.CurrentStatus
			case svc.Stop, svc.Shutdown:
				changes <- svc.Status{State: svc.StopPending}
				cancel()
			}
		}
	}
}

// eventWriter writes each entry of a log as an event of its level.
type eventWriter struct{ events *eventlog.Log }

func (w eventWriter) Write(entry []byte) (int, error) {
	const id = 1
	text := strings.TrimSpace(string(entry))
	write := w.events.Info
	switch levelOf(text) {
	case "error", "fatal", "panic":
		write = w.events.Error
	case "warning":
		write = w.events.Warning
	}
	return len(entry), write(id, text)
}
