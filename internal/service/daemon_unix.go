//go:build unix

package service

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/directx-nri/directx-nri/internal/durable"
)

// unitHead is the first line of our unit files.
const unitHead = "# Written by 'dxctl service install'.\n"

func (d Daemon) unit() string { return filepath.Join(d.UnitDir, d.Name+".service") }

// unitText returns the unit file, without the first line of that of the packages, which says
// whose it is.
func (d Daemon) unitText() string {
	_, unit, _ := strings.Cut(d.Unit, "\n")
	return unitHead + strings.ReplaceAll(unit, `"/usr/bin/`+filepath.Base(d.Program)+`"`, d.execLine())
}

// execLine returns the quoted command line.
// https://www.freedesktop.org/software/systemd/man/latest/systemd.service.html#Command%20lines
func (d Daemon) execLine() string {
	quote := strings.NewReplacer(`\`, `\\`, `"`, `\"`, `%`, `%%`, `$`, `$$`)
	line := `"` + quote.Replace(d.Program) + `"`
	for _, arg := range d.Args {
		line += ` "` + quote.Replace(arg) + `"`
	}
	return line
}

// installed reports whether there is a unit file. One of others is [ErrForeign].
func (d Daemon) installed() (bool, error) {
	data, err := os.ReadFile(d.unit())
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err == nil && !bytes.HasPrefix(data, []byte(unitHead)):
		err = fmt.Errorf("%s: %w", d.unit(), ErrForeign)
	}
	return true, err
}

func (d Daemon) install(ctx context.Context) error {
	if err := durable.Replace(d.unit(), []byte(d.unitText()), 0o644); err != nil {
		return err
	}
	return systemctl(ctx, []string{"daemon-reload"}, []string{"enable", d.Name}, []string{"restart", d.Name})
}

func (d Daemon) uninstall(ctx context.Context) error {
	if err := systemctl(ctx, []string{"disable", "--now", d.Name}); err != nil {
		return err
	}
	if err := durable.Remove(d.unit()); err != nil {
		return err
	}
	return systemctl(ctx, []string{"daemon-reload"})
}

// systemctl runs commands where systemctl exists.
func systemctl(ctx context.Context, commands ...[]string) error {
	if _, err := exec.LookPath("systemctl"); err != nil {
		return nil
	}
	for _, args := range commands {
		if out, err := exec.CommandContext(ctx, "systemctl", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("systemctl %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(out))
		}
	}
	return nil
}

// Run reports that the process was not started by a service manager that needs
// answers: systemd needs none.
func Run(string, Main) (status int, ok bool) { return 0, false }
