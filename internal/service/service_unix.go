//go:build unix

package service

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"

	"github.com/directx-nri/directx-nri/internal/localgrpc"
)

// systemdUnit is restarted by systemctl.
type systemdUnit struct {
	commandService
	unit string
}

// Named returns the named service of systemd.
func Named(name string) Service {
	return systemdUnit{commandService{"systemctl restart " + name, func(ctx context.Context) *exec.Cmd {
		return exec.CommandContext(ctx, "systemctl", "restart", "--", name)
	}}, name}
}

// unitPattern finds a unit of the system in /proc/PID/cgroup. systemctl does not find the units of users.
var unitPattern = regexp.MustCompile(`:/system\.slice/([^/\n]+\.service)`)

// NameBySocket returns the name of the service that runs the process that listens on socket, "" if that
// is unknown. On Windows, it always is.
func NameBySocket(ctx context.Context, socket string) string {
	pid, _ := localgrpc.ServerPID(ctx, socket)
	cgroups, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	return unitOf(string(cgroups))
}

func unitOf(cgroups string) string {
	if match := unitPattern.FindStringSubmatch(cgroups); match != nil {
		return match[1]
	}
	return ""
}

// Check returns an error unless systemd runs and has the unit.
func (s systemdUnit) Check(ctx context.Context) error {
	output, err := exec.CommandContext(ctx, "systemctl", "show", "--property=LoadState", "--", s.unit).CombinedOutput()
	text := strings.Join(strings.Fields(string(output)), " ")
	if err == nil && text == "LoadState=loaded" {
		return nil
	}
	return fmt.Errorf("systemd cannot restart %s: %s; set --service or --restart-command", s.unit, cmp.Or(text, fmt.Sprint(err)))
}

func shell(ctx context.Context, command string) *exec.Cmd {
	return exec.CommandContext(ctx, "/bin/sh", "-c", command)
}
