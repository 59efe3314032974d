package service

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/directx-nri/directx-nri/internal/durable"
)

// Daemon is a program of ours that the service manager of the operating system runs:
// systemd, or the service control manager of Windows.
type Daemon struct {
	Name, Description string
	// Program is an absolute path.
	Program string
	Args    []string
	// Unit is the unit file of the packages, in which Program is in /usr/bin, and UnitDir
	// systemd's directory, on Linux.
	Unit, UnitDir string
}

// ErrForeign reports a service of the daemon's name that was not created by Install.
var ErrForeign = errors.New("it was not created by 'dxctl service install': remove it first")

// Install creates or replaces the service, starts it, and makes it start with the
// system. The service runs as the system, so others must not be able to replace Program.
func (d Daemon) Install(ctx context.Context) error {
	err := fmt.Errorf("%s is not an absolute path", d.Program)
	if filepath.IsAbs(d.Program) {
		err = durable.CheckProgram(d.Program)
	}
	if err == nil {
		_, err = d.installed()
	}
	if err == nil {
		err = d.install(ctx)
	}
	return d.failed("install", err)
}

// Uninstall stops and removes the service. It reports whether there was one.
func (d Daemon) Uninstall(ctx context.Context) (removed bool, err error) {
	installed, err := d.installed()
	if err == nil && installed {
		err = d.uninstall(ctx)
	}
	return installed, d.failed("uninstall", err)
}

func (d Daemon) failed(action string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s the service %s: %w", action, d.Name, err)
}

// Main is the part of a daemon's main function that a service manager can start. It
// runs until ctx ends, logs to log, and returns the exit status.
type Main func(ctx context.Context, log io.Writer) (status int)
