package service

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/registry"
	"golang.org/x/sys/windows/svc"
	"golang.org/x/sys/windows/svc/eventlog"
	"golang.org/x/sys/windows/svc/mgr"

	"github.com/directx-nri/directx-nri/internal/access"
	"github.com/directx-nri/directx-nri/internal/winpath"
)

const daemonTimeout = time.Minute

// runAsService is the first argument of a process that the service manager starts.
const runAsService = "--run-as-service"

// errForeign means that Install has not created the service with the daemon's name.
var errForeign = errors.New("it was not created by 'dxctl service install': remove it first")

// Install creates or replaces the service, starts it, and makes it start with the
// system. The service runs as the system, so other users must not be able to write Program.
func (d Daemon) Install(ctx context.Context) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("install the service %s: %w", d.Name, err)
		}
	}()
	if !filepath.IsAbs(d.Program) {
		return fmt.Errorf("%s is not an absolute path", d.Program)
	}
	if err := access.CheckProgram(d.Program); err != nil {
		return err
	}
	if _, err := d.isInstalled(); err != nil {
		return err
	}
	return d.install(ctx)
}

// Uninstall stops and removes the service. It reports whether there was one.
func (d Daemon) Uninstall(ctx context.Context) (removed bool, err error) {
	installed, err := d.isInstalled()
	if err == nil && installed {
		err = d.uninstall(ctx)
	}
	if err != nil {
		return false, fmt.Errorf("uninstall the service %s: %w", d.Name, err)
	}
	return installed, nil
}

// isInstalled reports whether the service exists. The error matches [errForeign] if it runs another
// program, such as nssm.
func (d Daemon) isInstalled() (bool, error) {
	line, err := commandLineOf(d.Name)
	if errors.Is(err, registry.ErrNotExist) {
		return false, nil
	}
	if program := programOf(line); err == nil && !strings.EqualFold(winpath.Base(program), d.Name+".exe") {
		err = fmt.Errorf("it runs %s: %w", program, errForeign)
	}
	return true, err
}

func (d Daemon) install(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, daemonTimeout)
	defer cancel()
	args := append([]string{runAsService}, d.Args...)
	config := mgr.Config{
		ServiceType: windows.SERVICE_WIN32_OWN_PROCESS, StartType: mgr.StartAutomatic, ErrorControl: mgr.ErrorNormal,
		BinaryPathName: windows.ComposeCommandLine(append([]string{d.Program}, args...)), DisplayName: d.Name, Description: d.Description,
	}
	err := stop(ctx, d.Name)
	if errors.Is(err, windows.ERROR_SERVICE_DOES_NOT_EXIST) {
		err = withManager(func(manager *mgr.Mgr) error {
			service, err := manager.CreateService(d.Name, d.Program, config, args...)
			if err != nil {
				return err
			}
			return service.Close()
		})
	}
	if err != nil {
		return err
	}
	err = eventlog.InstallAsEventCreate(d.Name, eventlog.Error|eventlog.Warning|eventlog.Info)
	if err != nil && !strings.Contains(err.Error(), "already exists") {
		return fmt.Errorf("register the event log source: %w", err)
	}
	var restarts []mgr.RecoveryAction // The service manager repeats the last one.
	for _, delay := range []time.Duration{2 * time.Second, 5 * time.Second, 30 * time.Second} {
		restarts = append(restarts, mgr.RecoveryAction{Type: mgr.ServiceRestart, Delay: delay})
	}
	return withService(d.Name, func(service *mgr.Service) error {
		config.DelayedAutoStart = true
		for _, set := range []func() error{
			func() error { return service.UpdateConfig(config) },
			func() error { return service.SetRecoveryActions(restarts, uint32(time.Hour.Seconds())) },
			func() error { return service.SetRecoveryActionsOnNonCrashFailures(true) },
		} {
			// Wine's service manager has no delayed start and no recovery.
			if err := set(); err != nil && !errors.Is(err, windows.ERROR_INVALID_LEVEL) {
				return err
			}
		}
		if err := start(ctx, d.Name); err != nil {
			return err
		}
		status, err := waitWhile(ctx, service, func(state svc.State) bool { return state != svc.Running && state != svc.Stopped })
		if err != nil || status.State != svc.Stopped {
			return err
		}
		return fmt.Errorf("it ended with status %d: see the event log", max(status.Win32ExitCode, status.ServiceSpecificExitCode))
	})
}

func (d Daemon) uninstall(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, daemonTimeout)
	defer cancel()
	if err := stop(ctx, d.Name); err != nil {
		return err
	}
	err := eventlog.Remove(d.Name)
	if errors.Is(err, registry.ErrNotExist) {
		err = nil
	}
	return errors.Join(withService(d.Name, (*mgr.Service).Delete), err)
}

// Run runs a daemon that the service manager has started, with the event log as its
// log. started is false for a process that was started another way.
func Run(name string, main Main) (status int, started bool) {
	if len(os.Args) < 2 || os.Args[1] != runAsService {
		return 0, false
	}
	os.Args = slices.Delete(os.Args, 1, 2)
	log := io.Discard
	if events, err := eventlog.Open(name); err == nil {
		defer func() { _ = events.Close() }()
		log = eventWriter{events}
	}
	h := &serviceHandler{main: main, log: log}
	if err := svc.Run(name, h); err != nil {
		fmt.Fprintf(log, "level=error msg=%q\n", err)
		return 1, true
	}
	return h.status, true
}

// serviceHandler runs a daemon for the service manager.
type serviceHandler struct {
	main   Main
	log    io.Writer
	status int
}

// Execute implements [svc.Handler].
func (h *serviceHandler) Execute(_ []string, requests <-chan svc.ChangeRequest, changes chan<- svc.Status) (specific bool, status uint32) {
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
