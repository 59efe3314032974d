package show

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/directx-nri/directx-nri/advertiser/config"
	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/internal/testutil/containerdtest"
)

// runCommand runs a command and returns what it printed on each of its outputs. It runs without
// this machine's node policy, unless args have a state directory.
func runCommand(t *testing.T, stdin string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	if len(args) > 0 && !slices.Contains(args, "--state-dir") {
		args = slices.Concat(args[:1], []string{"--state-dir", filepath.Join(t.TempDir(), "none")}, args[1:])
	}
	command := &cobra.Command{Use: "dxctl"}
	command.AddCommand(NewDevicesCommand(), NewAllocationsCommand(), NewFlagsCommand(), NewSpecCommand())
	command.SetIn(strings.NewReader(stdin))
	return containerdtest.Run(t, command, args...)
}

// runCLI runs a command and returns what it printed.
func runCLI(t *testing.T, args ...string) (output string, err error) {
	t.Helper()
	stdout, stderr, err := runCommand(t, "", args...)
	return stderr + stdout, err
}

// configFile writes a configuration file that only this user can write.
func configFile(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "config.yaml")
	testutil.WriteFile(t, file, "apiVersion: "+config.APIVersion+"\nkind: "+config.Kind+"\n"+text, 0o600)
	return file
}

func TestCompletionOfGPUs(t *testing.T) {
	t.Parallel()
	inventory := newInventory(t)
	for want, args := range map[string][]string{
		"0\tNVIDIA Tesla T4":                     {"flags", "--gpus", ""},
		"1,PCIROOT(0)#PCI(0B00)\tIntel AI Boost": {"spec", "--gpus", "1,PCI"},
		`ROOT\BASICRENDER\0000`:                  {"devices", ""},
	} {
		args = slices.Insert(args, 1, "--inventory", inventory, "--state-dir", t.TempDir())
		if out, err := runCLI(t, append([]string{cobra.ShellCompRequestCmd}, args...)...); err != nil || !strings.Contains(out, "\n"+want) && !strings.HasPrefix(out, want) {
			t.Errorf("%v: %v\n%s", args, err, out)
		}
	}
}
