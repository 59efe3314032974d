//go:build unix

package service

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/directx-nri/directx-nri/internal/testutil"
)

// systemd is a directory of units and a systemctl that records its arguments.
func systemd(t *testing.T) (unitDir string, calls func() string) {
	t.Helper()
	bin, unitDir := t.TempDir(), t.TempDir()
	log := filepath.Join(bin, "log")
	script := "#!/bin/sh\necho \"$*\" >> " + log + "\n"
	testutil.WriteFile(t, filepath.Join(bin, "systemctl"), script, 0o700)
	t.Setenv("PATH", bin+":/bin:/usr/bin")
	return unitDir, func() string {
		data, _ := os.ReadFile(log)
		_ = os.Remove(log)
		return strings.ReplaceAll(string(data), "\n", ";")
	}
}

func program(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "daemon")
	testutil.WriteFile(t, path, "", 0o700)
	return path
}

func TestUnit(t *testing.T) {
	unitDir, calls := systemd(t)
	d := Daemon{Name: "daemon", Description: "A daemon", Program: program(t), Args: []string{"--a", `"b" 100% $C \`}, Unit: "# packaged\n[Service]\nExecStart=\"/usr/bin/daemon\"\nRestart=always\n", UnitDir: unitDir}
	ctx := context.Background()
	for range 2 {
		if err := d.Install(ctx); err != nil {
			t.Fatal(err)
		}
		if got := calls(); got != "daemon-reload;enable daemon;restart daemon;" {
			t.Errorf("install: systemctl %s", got)
		}
	}
	unit, err := os.ReadFile(filepath.Join(unitDir, "daemon.service"))
	if want := "ExecStart=\"" + d.Program + `" "--a" "\"b\" 100%% $$C \\"` + "\nRestart=always\n"; err != nil || !strings.Contains(string(unit), want) {
		t.Errorf("%v\n%s\nwant %s", err, unit, want)
	}
	for _, want := range []string{"disable --now daemon;daemon-reload;", ""} {
		if removed, err := d.Uninstall(ctx); err != nil || removed != (want != "") || calls() != want {
			t.Errorf("uninstall: %t, %v, want systemctl %s", removed, err, want)
		}
	}
	if entries, err := os.ReadDir(unitDir); err != nil || len(entries) > 0 {
		t.Errorf("left: %v, %v", entries, err)
	}
}

// A unit file that someone else wrote, and a program that others can change, are
// refused.
func TestInstallRefuses(t *testing.T) {
	unitDir, calls := systemd(t)
	d := Daemon{Name: "daemon", Program: program(t), UnitDir: unitDir}
	foreign := filepath.Join(unitDir, "daemon.service")
	testutil.WriteFile(t, foreign, "[Unit]\n", 0o600)
	ctx := context.Background()
	_, uninstallErr := d.Uninstall(ctx)
	for name, err := range map[string]error{"install": d.Install(ctx), "uninstall": uninstallErr} {
		if !errors.Is(err, ErrForeign) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if data, err := os.ReadFile(foreign); err != nil || string(data) != "[Unit]\n" || calls() != "" {
		t.Errorf("%s, %v", data, err)
	}
	d.Name = "other"
	if err := os.Chmod(d.Program, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := d.Install(ctx); err == nil || !strings.Contains(err.Error(), "others can write to it") {
		t.Errorf("a program that others can write: %v", err)
	}
	dir := filepath.Dir(d.Program)
	if err := errors.Join(os.Chmod(d.Program, 0o700), os.Chmod(dir, 0o777)); err != nil {
		t.Fatal(err)
	}
	if err := d.Install(ctx); err == nil || !strings.Contains(err.Error(), "check "+dir+": others can write to it: mode 0777") || calls() != "" {
		t.Errorf("a directory that others can write: %v", err)
	}
}

func TestLevelOf(t *testing.T) {
	t.Parallel()
	for entry, want := range map[string]string{
		`time="x" level=warning msg="level=info"`: "warning", `{"level":"info","msg":"x"}`: "info", "directx-advertiser: no": "error",
	} {
		if got := levelOf(entry); got != want {
			t.Errorf("%s: %s", entry, got)
		}
	}
}
