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
	for name, test := range map[string]struct {
		args, out []string
		wantErr   string
	}{
		"state directory":                  {[]string{state}, nil, "which has the node's secrets"},
		"configuration of another machine": {[]string{valid}, []string{valid + " is valid: directx.microsoft.com/display, directx.microsoft.com/compute by 2 rule(s)\n"}, ""},
		"all files":                        {[]string{invalid, inventory}, []string{inventory + " is valid: 1 GPU(s)\n"}, invalid + ": log.level: "},
		"Windows":                          {[]string{"--node-os", "windows", windows}, []string{windows + " is valid"}, ""},
		"Windows on Linux":                 {[]string{"--node-os", "linux", windows}, nil, windows + ": extraMounts.hostDirectories[0]: "},
		"another system":                   {[]string{"--node-os", "macos", valid}, nil, "want one of windows, linux"},
		"no file":                          {[]string{invalid + ".none"}, nil, invalid + ".none: "},
	} {
		out, err := runCLI(t, append([]string{"config", "check"}, test.args...)...)
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
		var out strings.Builder
		c.File += suffix
		if err := checkFile(&out, c); err != nil || !strings.HasPrefix(out.String(), c.File+" is valid: directx.microsoft.com/display") {
			t.Errorf("%v\n%s", err, &out)
		}
	}
}

func TestConfigApply(t *testing.T) {
	t.Parallel()
	inventory := privateFile(t, "gpus.yaml", "apiVersion: directx.microsoft.com/v1alpha1\nkind: Inventory\ndevices: [{instanceID: a}]\n")
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
		testutil.CheckError(t, "without flags, with a missing file", err, path+": no such file or directory")
		testutil.NoError(t, os.Rename(path+".none", path))
	}
	if devices, err := node.CompiledInventory(stateDir).Devices(t.Context()); err != nil || len(devices) != 1 {
		t.Errorf("%v, %v", devices, err)
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
