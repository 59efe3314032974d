//go:build unix

package service

import (
	"context"
	"errors"
	"fmt"
)

// errWindowsOnly is the error of Install and Uninstall: the packages have units of systemd.
var errWindowsOnly = fmt.Errorf("services of Windows: %w; use the packages, or the units in deployments/systemd", errors.ErrUnsupported)

// Install is supported on Windows only.
func (Daemon) Install(context.Context) error { return errWindowsOnly }

// Uninstall is supported on Windows only.
func (Daemon) Uninstall(context.Context) (removed bool, err error) { return false, errWindowsOnly }

// Run reports that the process was not started by a service manager that needs answers.
func Run(string, Main) (status int, started bool) { return 0, false }
