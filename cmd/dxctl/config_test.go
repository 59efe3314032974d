package main

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/directx-nri/directx-nri/discovery/node"
	"github.com/directx-nri/directx-nri/internal/policy"
)

const configHead = "apiVersion: directx.microsoft.com/v1alpha1\nkind: Configuration\n"

// configFile writes a configuration file that only this user can write.
func configFile(t *testing.T, text string) string {
	t.Helper()
	return privateFile(t, "config.yaml", configHead+text)
}

func privateFile(t *testing.T, name, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestConfigCheck(t *testing.T) {
	t.Parallel()
	valid := configFile(t, "preset: tensorworks\ninventory: "+filepath.Join(t.TempDir(), "elsewhere.yaml")+"\n")
	if err := os.Chmod(valid, 0o666); err != nil {
		t.Fatal(err)
	}
	if out, err := ask(t, "config", "check", valid); err != nil || out != valid+" is valid: directx.microsoft.com/display, directx.microsoft.com/compute by 2 rules\n" {
		t.Errorf("%v\n%s", err, out)
	}
	invalid := configFile(t, "replicas: 0\nlog: {level: loud}\n")
	out, err := ask(t, "config", "check", invalid)
	if err == nil || !strings.HasPrefix(out, invalid+":3: replicas: 0 is out of range") || !strings.Contains(out, "\n"+invalid+":4: log.level: ") || !strings.Contains(err.Error(), "2 problems") {
		t.Errorf("%v\n%s", err, out)
	}
	inventory := privateFile(t, "gpus.yaml", "apiVersion: directx.microsoft.com/v1alpha1\nkind: Inventory\ndevices: [{instanceID: a}]\n")
	if out, err := ask(t, "config", "check", "--inventory", inventory); err != nil || out != inventory+" is valid: 1 GPU\n" {
		t.Errorf("%v\n%s", err, out)
	}
	if out, err := ask(t, "config", "check", valid, "--inventory", valid); err == nil || !strings.Contains(out, valid+":2: kind: ") {
		t.Errorf("a configuration as inventory: %v\n%s", err, out)
	}
	if _, err := ask(t, "config", "check", invalid+".none"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	if out, err := ask(t, "config", "check", "a", "b"); err == nil || out != "" {
		t.Errorf("two files: %v\n%s", err, out)
	}
}

func TestConfigApplyAndShow(t *testing.T) {
	t.Parallel()
	inventory := privateFile(t, "gpus.yaml", "apiVersion: directx.microsoft.com/v1alpha1\nkind: Inventory\ndevices: [{instanceID: a}]\n")
	file := configFile(t, "replicas: 4\npreset: microsoft\n")
	stateDir := filepath.Join(t.TempDir(), "state")
	apply := func(args ...string) (string, error) {
		return ask(t, append([]string{"config", "apply", "--config", file, "--state-dir", stateDir, "--inventory", inventory}, args...)...)
	}
	const what = "microsoft.com/directx by 1 rule; 1 GPU in "
	for _, verb := range []string{"applied", "already in force"} {
		if out, err := apply(); err != nil || out != verb+": "+what+inventory+"\n" {
			t.Errorf("%v\n%s", err, out)
		}
	}
	if devices, err := node.Inventory(stateDir).Devices(t.Context()); err != nil || len(devices) != 1 {
		t.Errorf("%v, %v", devices, err)
	}
	var shown, shownJSON policy.Policy
	out, err := ask(t, "config", "show", "--state-dir", stateDir)
	if err != nil || yaml.UnmarshalStrict([]byte(out), &shown) != nil || shown.Resources[0].Replicas != 4 || shown.Source.Inventory != inventory {
		t.Errorf("%v\n%s", err, out)
	}
	if out, err := ask(t, "config", "show", "--state-dir", stateDir, "-o", "json"); err != nil || json.Unmarshal([]byte(out), &shownJSON) != nil || shownJSON.Source != shown.Source {
		t.Errorf("%v\n%s", err, out)
	}
	if _, err := ask(t, "config", "show", "-o", "table"); err == nil {
		t.Error("no error for an unknown format")
	}

	// What is invalid changes nothing.
	before, err := os.ReadFile(policy.Path(stateDir))
	if err != nil {
		t.Fatal(err)
	}
	if out, err := apply("--served-by", "magic"); err == nil || !strings.Contains(err.Error(), "--served-by: ") {
		t.Errorf("%v\n%s", err, out)
	}
	if err := os.WriteFile(file, []byte(configHead+"replicas: 0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := apply(); err == nil || !strings.Contains(err.Error(), file+":3: replicas: ") {
		t.Errorf("%v\n%s", err, out)
	}
	if err := os.WriteFile(file, []byte(configHead+"shim: {runtime: "+file+".none}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := apply(); err == nil || !strings.Contains(err.Error(), file+":3: shim.runtime: runtime shim not found: ") {
		t.Errorf("%v\n%s", err, out)
	}
	if after, err := os.ReadFile(policy.Path(stateDir)); err != nil || string(after) != string(before) {
		t.Errorf("the policy has changed: %v\n%s", err, after)
	}
	if out, err := ask(t, "config", "apply", "--config", file+".none", "--state-dir", stateDir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v\n%s", err, out)
	}
}
