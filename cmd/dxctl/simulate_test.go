package main

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"directx-nri/cmd/dxctl/simulate"
)

// simulated are pods that together show all that can become of one.
const simulated = `apiVersion: v1
kind: Pod
metadata: {name: render}
spec:
  initContainers:
  - {name: warm-up, image: x, resources: {limits: {directx.microsoft.com/display: 1}}}
  containers:
  - name: main
    image: mcr.microsoft.com/windows/server:ltsc2022
    command: [render.exe]
    resources: {limits: {directx.microsoft.com/display: 1}}
  - {name: log, image: x, env: [{name: DIRECTX_VISIBLE_DEVICES, value: all}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: infer, namespace: ml}
spec:
  replicas: 2
  template:
    spec:
      runtimeClassName: special
      containers:
      - {name: main, image: x, resources: {limits: {directx.microsoft.com/compute: 1}}}
---
{apiVersion: v1, kind: Service, metadata: {name: infer}}
---
apiVersion: v1
kind: Pod
metadata: {name: thief}
spec:
  containers:
  - {name: main, image: x, env: [{name: DIRECTX_ALLOCATION_DISPLAY, value: 0123456789abcdef0123456789abcdef}]}
`

// oneSimulated is the first of them.
func oneSimulated() string {
	first, _, _ := strings.Cut(simulated, "---\n")
	return first
}

const nodeOfSimulated = `apiVersion: directx.microsoft.com/v1alpha1
kind: Inventory
devices:
- instanceID: PCI\VEN_10DE&DEV_1EB8\1
  description: NVIDIA Tesla T4
  locationPath: PCIROOT(0)#PCI(1B00)
  display: true
  compute: true
  driver: {storePath: C:\Windows\System32\DriverStore\FileRepository\nv.inf_amd64_1}
  runtimeFiles: {system32: [{source: nvcuda_loader64.dll, destination: nvcuda.dll}]}
- instanceID: PCI\VEN_10DE&DEV_1EB8\2
  description: NVIDIA Tesla T4
  locationPath: PCIROOT(0)#PCI(1C00)
  display: true
  health: {reason: driver is not started (code 10)}
- instanceID: PCI\VEN_1234&DEV_0001\1
  locationPath: PCIROOT(0)#PCI(1D00)
  compute: true
`

// simulateArgs returns the arguments for a simulation of that manifest, which is
// standard input.
func simulateArgs(t *testing.T, more ...string) []string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "gpus.yaml")
	if err := os.WriteFile(file, []byte(nodeOfSimulated), 0o600); err != nil {
		t.Fatal(err)
	}
	return append([]string{"simulate", "--inventory", file, "-f", "-"}, more...)
}

func TestSimulateOutput(t *testing.T) {
	t.Parallel()
	for _, output := range []string{simulateDiff, simulateSpec, outputTable, outputJSON} {
		stdout, stderr, err := askApart(t, simulated, simulateArgs(t, "-o", output)...)
		if err == nil || err.Error() != "2 of 4 pods would not run on this node" {
			t.Errorf("%s: error %v", output, err)
		}
		golden(t, "simulate-"+output, stdout+"--- standard error ---\n"+stderr)
	}
}

func TestSimulateWithoutRefusal(t *testing.T) {
	t.Parallel()
	stdout, stderr, err := askApart(t, oneSimulated(), simulateArgs(t, "--replicas", "4", "-o", "json")...)
	var report simulate.Report
	if err != nil || json.Unmarshal([]byte(stdout), &report) != nil || len(report.Pods) != 1 || report.ReplicasPerGPU != 4 || report.Resources[0].Allocatable != 4 || stderr != "" {
		t.Errorf("%v\n%s\n%s", err, stdout, stderr)
	}
}

func TestSimulateTheNinthOfEight(t *testing.T) {
	t.Parallel()
	pod := "{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {containers: [{name: c, resources: {limits: {directx.microsoft.com/display: 1}}}]}}"
	stdout, _, err := askApart(t, pod, simulateArgs(t, "--replicas", "8", "--count", "9", "-o", "table")...)
	if err == nil || err.Error() != "1 of 9 pods would not run on this node" {
		t.Errorf("error %v", err)
	}
	golden(t, "simulate-ninth", stdout)
}

func TestSimulateWithRealFiles(t *testing.T) {
	t.Parallel()
	stdout, _, err := askApart(t, oneSimulated(), simulateArgs(t, "--host-root", t.TempDir())...)
	if err != nil || !strings.Contains(stdout, "note: ") || strings.Contains(stdout, `System32\\nvcuda.dll`) {
		t.Errorf("%v\n%s", err, stdout)
	}
}

func TestSimulateRefusals(t *testing.T) {
	t.Parallel()
	none, file := filepath.Join(t.TempDir(), "none"), filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		stdin string
		args  []string
		want  string
	}{
		"no manifest":         {"", []string{"-f", ""}, "no manifest is named: name its file with -f"},
		"no such manifest":    {"", []string{"-f", none}, "name the manifest with -f"},
		"no pod":              {"{apiVersion: v1, kind: Service, metadata: {name: x}}", nil, "standard input: there is no pod in it, but Service x"},
		"a form":              {simulated, []string{"-o", "yaml"}, `--output "yaml" is none of`},
		"replicas":            {simulated, []string{"--replicas", "0"}, "--replicas: 0 is not possible; choose 1 to 1024"},
		"count":               {simulated, []string{"--count", "-1"}, "--count -1 is less than 0"},
		"an operating system": {simulated, []string{"--container-os", "plan9"}, "--container-os"},
		"no such root":        {simulated, []string{"--host-root", none}, "--host-root: "},
		"a root of no folder": {simulated, []string{"--host-root", file}, "is no folder"},
		"no such inventory":   {simulated, []string{"--inventory", none}, none},
		"a printable manifest": {"{apiVersion: v1, kind: Pod, metadata: {name: \"a\\e[31mb\"}, spec: {containers: [{name: c}]}}", []string{"--container-os", "windows", "-o", "diff", "--count", "5000"},
			"more than 4096 pods are not simulated"},
	} {
		if stdout, _, err := askApart(t, test.stdin, simulateArgs(t, test.args...)...); err == nil || !strings.Contains(err.Error(), test.want) || stdout != "" {
			t.Errorf("%s: %v\n%s", name, err, stdout)
		}
	}
}

// fullDisk is an output that takes nothing.
type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errors.New("no space left") }

func TestSimulateTellsThatItCouldNotPrint(t *testing.T) {
	t.Parallel()
	for _, output := range []string{simulateDiff, simulateSpec, outputTable, outputJSON} {
		command := newCommand()
		command.SetArgs(simulateArgs(t, "-o", output))
		command.SilenceErrors, command.SilenceUsage = true, true
		command.SetIn(strings.NewReader(oneSimulated()))
		command.SetOut(fullDisk{})
		command.SetErr(io.Discard)
		if err := command.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), "no space left") {
			t.Errorf("%s: %v", output, err)
		}
	}
}

func TestSimulatePrintsNoControlCharacters(t *testing.T) {
	t.Parallel()
	pod := `{apiVersion: v1, kind: Pod, metadata: {name: "a\e[31mb"}, spec: {containers: [{name: "c\e[2J", command: ["\e]0;x\a"]}]}}`
	for _, output := range []string{simulateDiff, outputTable, outputJSON, simulateSpec} {
		stdout, stderr, err := askApart(t, pod, simulateArgs(t, "-o", output)...)
		if err != nil || slices.ContainsFunc([]rune(stdout+stderr), func(r rune) bool { return r < ' ' && r != '\n' }) {
			t.Errorf("%s: %v\n%q", output, err, stdout)
		}
	}
}
