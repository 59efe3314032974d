package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/directx-nri/directx-nri/advertiser/config"
	"github.com/directx-nri/directx-nri/discovery/node"
	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/testutil"
)

func TestConfigCheck(t *testing.T) {
	t.Parallel()
	valid := configFile(t, "preset: tensorworks\ninventory: "+filepath.Join(t.TempDir(), "elsewhere.yaml")+"\n")
	testutil.NoError(t, os.Chmod(valid, 0o666))
	invalid := configFile(t, "replicas: 0\nlog: {level: loud}\nresources: [{name: x}]\n")
	inventory := privateFile(t, "gpus.yaml", "apiVersion: directx.microsoft.com/v1alpha1\nkind: Inventory\ndevices: [{instanceID: a}]\n")
	windows := configFile(t, "inventory: C:\\gpus.yaml\nextraMounts: {sources: host-directories, hostDirectories: ['D:\\models']}\n")
	state := configFile(t, "extraMounts: {sources: host-directories, hostDirectories: ['"+filepath.Join(paths.Default().State, "x")+"']}\n")
	const errInvalid = "the configuration is invalid"
	for name, test := range map[string]struct {
		args, out []string
		wantErr   string
	}{
		"state directory":                  {[]string{state}, []string{"which has the node's secrets"}, errInvalid},
		"configuration of another machine": {[]string{valid}, []string{"✔ " + valid + "  directx.microsoft.com/display, directx.microsoft.com/compute by 2 rule(s)\n"}, ""},
		"all files":                        {[]string{invalid, inventory}, []string{"✘ " + invalid + "  log.level: ", "✘ " + invalid + "  replicas: ", "✔ " + inventory + "  1 GPU(s)\n"}, errInvalid},
		"Windows":                          {[]string{"--node-os", "windows", windows}, []string{"✔ " + windows + "  "}, ""},
		"Windows on Linux":                 {[]string{"--node-os", "linux", windows}, []string{windows + "  extraMounts.hostDirectories[0]: "}, errInvalid},
		"another system":                   {[]string{"--node-os", "macos", valid}, nil, "want one of windows, linux"},
		"no file":                          {[]string{invalid + ".none"}, []string{"✘ " + invalid + ".none  "}, errInvalid},
		"standard input":                   {[]string{"-", valid}, []string{"✔ -           1 GPU(s)\n", "✔ " + valid}, ""},
		"an empty file":                    {[]string{privateFile(t, "empty.yaml", "")}, []string{"empty.yaml  it is empty"}, errInvalid},
	} {
		const stdin = "apiVersion: directx.microsoft.com/v1alpha1\nkind: Inventory\ndevices: [{instanceID: a}]\n"
		out, _, err := runCommand(t.Context(), t, stdin, append([]string{"config", "check"}, test.args...)...)
		testutil.CheckError(t, name, err, test.wantErr)
		for _, want := range test.out {
			if !strings.Contains(out, want) {
				t.Errorf("%s: no %q in\n%s", name, want, out)
			}
		}
	}
}

// TestConfigCheckNode: the node's own file is optional.
func TestConfigCheckNode(t *testing.T) {
	t.Parallel()
	c := config.Compiler{File: configFile(t, "replicas: 2\n"), StateDir: t.TempDir(), NodeOS: "linux"}
	for _, suffix := range []string{"", ".none"} {
		c.File += suffix
		if f := checkFile(c); len(f) != 1 || f[0].mark != markPassed || !strings.HasPrefix(f[0].text, "directx.microsoft.com/display") {
			t.Errorf("%+v", f)
		}
	}
}

func TestConfigApply(t *testing.T) {
	t.Parallel()
	inventory := privateFile(t, "gpus.yaml", "apiVersion: directx.microsoft.com/v1alpha1\nkind: Inventory\ndevices: [{instanceID: a, display: true, locationPath: PCIROOT(0), linux: {deviceNodes: [/dev/null]}}]\n")
	file := configFile(t, "replicas: 4\npreset: microsoft\n")
	stateDir := filepath.Join(t.TempDir(), "state")
	apply := func(args ...string) (string, error) {
		return runCLI(t, append([]string{"config", "apply", "--config", file, "--state-dir", stateDir, "--inventory", inventory}, args...)...)
	}
	const what = "applied: microsoft.com/directx by 1 rule(s); 1 GPU(s) in "
	if out, err := apply(); err != nil || out != what+inventory+"\n" {
		t.Errorf("%v\n%s", err, out)
	}
	if out, err := runCLI(t, "config", "apply", "--state-dir", stateDir); err != nil || out != what+inventory+"\n" {
		t.Errorf("without flags: %v\n%s", err, out)
	}
	for _, path := range []string{inventory, file} {
		testutil.NoError(t, os.Rename(path, path+".none"))
		_, err := runCLI(t, "config", "apply", "--state-dir", stateDir)
		testutil.CheckError(t, "without flags, with a missing file", err, path)
		testutil.NoError(t, os.Rename(path+".none", path))
	}
	if devices, err := node.CompiledInventory(stateDir).Devices(t.Context()); err != nil || len(devices) != 1 {
		t.Errorf("%v, %v", devices, err)
	}
	// GPUs of another system are applied with a warning.
	windows := privateFile(t, "gpus.yaml", "apiVersion: directx.microsoft.com/v1alpha1\nkind: Inventory\ndevices: [{instanceID: a, display: true, locationPath: PCIROOT(0)}]\n")
	out, err := apply("--node-os", "linux", "--inventory", windows)
	if want := "dxctl: warning: this node's containers can have no GPU of " + windows + ": it has no device node"; err != nil || !strings.HasPrefix(out, want) {
		t.Errorf("%v, want %s in\n%s", err, want, out)
	}
	// What is invalid changes nothing.
	before, err := os.ReadFile(policy.Path(stateDir))
	testutil.NoError(t, err)
	_, err = apply("--injection", "magic")
	testutil.CheckError(t, "invalid flag", err, "injection: value must be one of")
	for text, want := range map[string]string{"replicas: 0\n": "replicas: ", "log: {level: {}}\n": "log.level: "} {
		testutil.WriteFile(t, file, configHead+text, 0o600)
		_, err := apply()
		testutil.CheckError(t, text, err, file+": "+want)
	}
	if after, err := os.ReadFile(policy.Path(stateDir)); err != nil || string(after) != string(before) {
		t.Errorf("the policy has changed: %v\n%s", err, after)
	}
	if out, err := runCLI(t, "config", "apply", "--config", file+".none", "--state-dir", stateDir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v\n%s", err, out)
	}
}
