package main

import (
	"bytes"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// isolated returns args without this machine's node policy, unless they have a state
// directory.
func isolated(t *testing.T, args []string) []string {
	t.Helper()
	uses := len(args) > 0 && slices.Contains([]string{"allocations", "capabilities", "devices", "doctor", "flags", "spec"}, args[0])
	if !uses || slices.Contains(args, "--state-dir") {
		return args
	}
	return slices.Concat(args[:1], []string{"--state-dir", filepath.Join(t.TempDir(), "none")}, args[1:])
}

// ask runs dxctl and returns what it printed.
func ask(t *testing.T, args ...string) (stdout string, err error) {
	t.Helper()
	command := newCommand()
	command.SetArgs(isolated(t, args))
	command.SilenceErrors, command.SilenceUsage = true, true
	var out bytes.Buffer
	command.SetOut(&out)
	command.SetErr(&out)
	err = command.ExecuteContext(t.Context())
	return out.String(), err
}

// A configuration can name the inventory.
func TestDevicesByConfiguration(t *testing.T) {
	t.Parallel()
	inventory, _, _ := newTestNode(t)
	out, err := ask(t, "devices", "--config", configFile(t, "inventory: "+inventory+"\nreplicas: 3\n"), "-o", "json")
	if err != nil || !strings.Contains(out, `"PCI\\VEN_10DE&DEV_1EB8\\1"`) || !strings.Contains(out, `"replicas": 3`) {
		t.Errorf("%v: %s", err, out)
	}
}

func TestDevicesRefusals(t *testing.T) {
	t.Parallel()
	none := filepath.Join(t.TempDir(), "none")
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"no such inventory": {[]string{"--inventory", none}, none},
		"one is watched":    {[]string{"--watch", "0"}, "--watch excludes the name of a GPU"},
		"two at once":       {[]string{"0", "1"}, "accepts at most 1 arg(s)"},
	} {
		if out, err := ask(t, append([]string{"devices"}, test.args...)...); err == nil || !strings.Contains(err.Error(), test.want) || out != "" {
			t.Errorf("%s: %v %s", name, err, out)
		}
	}
	if runtime.GOOS == "windows" {
		return
	}
	if out, err := ask(t, "devices"); err == nil || !strings.Contains(err.Error(), "--inventory") {
		t.Errorf("without an inventory: %v %s", err, out)
	}
}
