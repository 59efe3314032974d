package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"directx-nri/internal/config"
)

const configHead = "apiVersion: directx.microsoft.com/v1alpha1\nkind: Configuration\n"

// configFile writes a configuration file where nobody else can write.
func configFile(t *testing.T, text string) string {
	t.Helper()
	folder := t.TempDir()
	if err := os.Chmod(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(folder, "config.yaml")
	if err := os.WriteFile(file, []byte(configHead+text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestConfigCheck(t *testing.T) {
	t.Parallel()
	good := configFile(t, "preset: tensorworks\n")
	if out, err := ask(t, "config", "check", good); err != nil || out != good+" is good: directx.microsoft.com/display, directx.microsoft.com/compute by 2 rules\n" {
		t.Errorf("%v\n%s", err, out)
	}
	// Whoever wrote it: it is looked at, and nothing is done by it.
	if err := os.Chmod(good, 0o666); err != nil {
		t.Fatal(err)
	}
	if out, err := ask(t, "config", "check", good); err != nil {
		t.Errorf("a file of others: %v\n%s", err, out)
	}
	bad := configFile(t, "replicas: 0\nlog: {levl: x}\n")
	out, err := ask(t, "config", "check", bad)
	want := bad + ":3: replicas: 0 is not possible; choose 1 to 1024\n" + bad + ":4: log: the key \"levl\" is not known; allowed are level and format\n"
	if err == nil || out != want || !strings.Contains(err.Error(), "2 problems") {
		t.Errorf("%v\n%s", err, out)
	}
	if out, err := ask(t, "config", "check", bad+".none"); err == nil || out != "" || !strings.Contains(err.Error(), bad+".none") {
		t.Errorf("no file: %v\n%s", err, out)
	}
	if out, err := ask(t, "config", "check", "a", "b"); err == nil || out != "" {
		t.Errorf("two files: %v\n%s", err, out)
	}
}

func TestConfigCheckOfTheNodesOwn(t *testing.T) {
	file := configFile(t, "replicas: 2\n")
	t.Setenv(config.Variable, file)
	if out, err := ask(t, "config", "check"); err != nil || !strings.HasPrefix(out, file+" is good") {
		t.Errorf("%v\n%s", err, out)
	}
	t.Setenv(config.Variable, file+".none")
	if out, err := ask(t, "config", "check"); err == nil || !strings.Contains(err.Error(), "the defaults count") {
		t.Errorf("%v\n%s", err, out)
	}
}

// settingsOf returns the settings that 'dxctl config show -o json' tells, by key.
func settingsOf(t *testing.T, text string) map[string]settingReport {
	t.Helper()
	var report struct{ Settings []settingReport }
	if err := json.Unmarshal([]byte(text), &report); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	by := map[string]settingReport{}
	for _, s := range report.Settings {
		by[s.Key] = s
	}
	return by
}

func TestConfigShowSaysWhereFrom(t *testing.T) {
	t.Setenv("DIRECTX_NRI_LOG_FORMAT", "json")
	file := configFile(t, "replicas: 4\npreset: microsoft\nlog:\n  level: debug\n  format: text\nextraMounts: {max: 3}\n")
	out, err := ask(t, "config", "show", "--config", file, "-o", "json")
	if err != nil {
		t.Fatal(err)
	}
	got := settingsOf(t, out)
	for key, want := range map[string]settingReport{
		"replicas":        {Value: "4", From: file + ":3"},
		"preset":          {Value: "microsoft", From: file + ":4"},
		"assignmentMode":  {Value: "class-guid", From: fromOther},
		"log.level":       {Value: "debug", From: file + ":6"},
		"log.format":      {Value: "json", From: "DIRECTX_NRI_LOG_FORMAT"},
		"extraMounts.max": {Value: "3", From: file + ":8"},
		"visibilityHints": {Value: "on", From: fromDefault},
		"metrics.address": {Value: "", From: fromDefault, Restart: true},
	} {
		want.Key = key
		if got[key] != want {
			t.Errorf("%+v, want %+v", got[key], want)
		}
	}
	// What it prints as YAML says the same.
	text, err := ask(t, "config", "show", "--config", file, "-o", "yaml")
	if err != nil {
		t.Fatal(err)
	}
	c, err := config.Parse([]byte(text))
	if err != nil || c.Resources[0].Name != "microsoft.com/directx" || c.Resources[0].Replicas != 4 || c.Log.Format != "json" {
		t.Errorf("%v: %+v\n%s", err, c, text)
	}
	table, err := ask(t, "config", "show", "--config", file)
	if err != nil || !strings.Contains(table, "DIRECTX_NRI_LOG_FORMAT") || !strings.Contains(table, "\nresources:\n") || strings.Contains(table, "apiVersion") {
		t.Errorf("%v\n%s", err, table)
	}
}

func TestConfigShowTheLastGood(t *testing.T) {
	t.Parallel()
	file := configFile(t, "replicas: 0\n")
	if err := os.WriteFile(file+config.LastGood, []byte(configHead+"replicas: 3\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	stdout, stderr, err := askApart(t, "", "config", "show", "--config", file, "-o", "json")
	if err != nil || settingsOf(t, stdout)["replicas"].From != file+".last-good:3" || !strings.Contains(stderr, "config.yaml:3: replicas") {
		t.Errorf("%v\n%s\n%s", err, stdout, stderr)
	}
	if err := os.Remove(file + config.LastGood); err != nil {
		t.Fatal(err)
	}
	if out, err := ask(t, "config", "show", "--config", file); err == nil || !strings.Contains(err.Error(), "config.yaml:3: replicas") {
		t.Errorf("%v\n%s", err, out)
	}
}

// The rules of a file decide what each device is offered as.
func TestDevicesByTheRules(t *testing.T) {
	t.Parallel()
	inventory, _, _ := aNode(t)
	file := configFile(t, "resources:\n- {name: example.com/t4, match: {description: '*T4*'}, replicas: 8}\n- {name: example.com/npu, match: {kind: compute}}\n")
	stdout, err := ask(t, "devices", "--inventory", inventory, "--config", file, "-o", "json")
	if err != nil {
		t.Fatal(err)
	}
	var devices []deviceReport
	if err := json.Unmarshal([]byte(stdout), &devices); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, d := range devices {
		got = append(got, d.Resource+d.NotOffered)
	}
	want := []string{"example.com/t4", "none of the configuration's resources is for it", "example.com/npu", "it supports neither display nor compute", "none of the configuration's resources is for it"}
	if strings.Join(got, "\n") != strings.Join(want, "\n") || devices[0].Replicas != 8 || devices[2].Replicas != 1 {
		t.Errorf("%q", got)
	}
	if one, err := ask(t, "devices", "0", "--inventory", inventory, "--config", file); err != nil || !strings.Contains(one, "example.com/t4, shared by up to 8 containers") {
		t.Errorf("%v\n%s", err, one)
	}
	// Where an inventory is named, the GPUs are listed without a configuration too.
	bad := configFile(t, "replicas: 0\n")
	stdout, stderr, err := askApart(t, "", "devices", "--inventory", inventory, "--config", bad, "-o", "json")
	if err != nil || strings.Contains(stdout, `"resource"`) || strings.Contains(stdout, `"notOffered"`) || !strings.Contains(stderr, "which resources offer these GPUs is not told") {
		t.Errorf("%v\n%s\n%s", err, stdout, stderr)
	}
}

// What the shim would do is by the configuration, and what flags say is the same.
func TestByHandByTheConfiguration(t *testing.T) {
	t.Parallel()
	inventory := filepath.Join(t.TempDir(), "gpus.yaml")
	if err := os.WriteFile(inventory, []byte(twoGPUs), 0o600); err != nil {
		t.Fatal(err)
	}
	file := configFile(t, "assignmentMode: class-guid\nvisibilityHints: 'off'\nruntimeFiles: {nvidia: {defaults: false, add: [nvml.dll]}}\n")
	spec := filepath.Join(filepath.Dir(file), "spec.json")
	if err := os.WriteFile(spec, []byte(windowsSpec(false)), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, args := range map[string][]string{
		"flags": {"flags", "--index", "0", "--container-os", "windows", "-o", "json"},
		"spec":  {"spec", spec, "--index", "0", "-o", "spec"},
	} {
		out, err := ask(t, append(args, "--assume-files", "--inventory", inventory, "--config", file)...)
		if err != nil || !strings.Contains(out, "5B45201D-F2F2-4F3B-85BB-30FF1F953599") || !strings.Contains(out, `nvml.dll`) ||
			strings.Contains(out, "nvidia-smi") || strings.Contains(out, "DIRECTX_DEVICES") || strings.Contains(out, "PCIROOT") {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
		out, err = ask(t, append(args, "--assume-files", "--inventory", inventory)...)
		if err != nil || !strings.Contains(out, "PCIROOT(0)#PCI(1B00)") || !strings.Contains(out, "nvidia-smi.exe") || !strings.Contains(out, "DIRECTX_DEVICES=") {
			t.Errorf("%s without a file: %v\n%s", name, err, out)
		}
	}
}
