package main

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"directx-nri/internal/allocation"
	"directx-nri/internal/paths"
	"directx-nri/internal/testutil"
)

// calls has the arguments of each command; DIRECTORY is that of [eightGPUs]. There is
// no containerd, so that queries of it fail at once.
var calls = map[string][]string{
	"devices":               {"devices"},
	"devices -o json":       {"devices", "-o", "json"},
	"devices INDEX":         {"devices", "7"},
	"allocations":           {"allocations"},
	"capabilities":          {"capabilities"},
	"doctor":                {"doctor"},
	"flags":                 {"flags", "--for", "ctr", "--all", "--assume-files", "--container-os", "windows"},
	"spec":                  {"spec", "DIRECTORY/config.json", "--all", "--assume-files"},
	"config check":          {"config", "check", "DIRECTORY/good.yaml"},
	"config show":           {"config", "show"},
	"config apply":          {"config", "apply", "--config", "DIRECTORY/good.yaml"},
	"runtime status":        {"runtime", "status"},
	"runtime configure":     {"runtime", "configure", "--dry-run"},
	"runtime unconfigure":   {"runtime", "unconfigure", "--dry-run"},
	"runtime install":       {"runtime", "install", "--from", "DIRECTORY/none"},
	"runtime uninstall":     {"runtime", "uninstall", "--from", "DIRECTORY/none"},
	"completion bash":       {"completion", "bash"},
	"completion zsh":        {"completion", "zsh"},
	"completion fish":       {"completion", "fish"},
	"completion powershell": {"completion", "powershell"},
	"__complete":            {"__complete", "devices", ""},
	"--help":                {"--help"},
	"--version":             {"--version"},
}

// places are the flags that keep a command to DIRECTORY.
var places = map[string]string{
	"inventory": "DIRECTORY/gpus.yaml", "state-dir": "DIRECTORY/state", "config": "DIRECTORY/config.toml",
	"cri-socket": "DIRECTORY/cri.sock", "pod-resources-socket": "DIRECTORY/kubelet.sock", "containerd-state": "DIRECTORY/containerd", "host-root": "DIRECTORY",
}

// eightGPUs makes the dir of a node with eight GPUs, each of which a pod holds.
func eightGPUs(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	records := paths.Allocations(filepath.Join(dir, "state"))
	recorder, err := allocation.OpenRecorder(t.Context(), records, testutil.Quiet())
	if err != nil {
		t.Fatal(err)
	}
	defer recorder.Close()
	files := "{system32: [nvapi64.dll, {source: nvcuda_loader64.dll, destination: nvcuda.dll}, nvml.dll], sysWOW64: [nvapi.dll, nvcuda.dll]}"
	inventory := "apiVersion: directx.microsoft.com/v1alpha1\nkind: Inventory\ndevices:\n"
	for i := range 8 {
		inventory += fmt.Sprintf("- {instanceID: 'PCI\\VEN_10DE&DEV_1EB8\\%d', description: NVIDIA Tesla T4, locationPath: 'PCIROOT(%d)#PCI(1B00)', luid: 0xC2F%d,\n"+
			"   display: true, compute: true, driver: {storePath: 'C:\\Windows\\System32\\DriverStore\\FileRepository\\nv.inf_amd64_1'}, runtimeFiles: %s}\n", i, i, i, files)
		id := fmt.Sprintf(`PCI\VEN_10DE&DEV_1EB8\%d`, i)
		token, err := recorder.Record(t.Context(), displays, []allocation.Replica{{ID: id + "::0", InstanceID: id}})
		if err != nil {
			t.Fatal(err)
		}
		holder := allocation.Holder{PodUID: fmt.Sprint("uid-", i), Container: "main", PodNamespace: "default", PodName: fmt.Sprint("pod-", i)}
		if err := allocation.OpenStore(records).Bind(token, holder); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{
		"gpus.yaml":   inventory,
		"config.toml": "version = 2\n",
		"good.yaml":   "apiVersion: directx.microsoft.com/v1alpha1\nkind: Configuration\nreplicas: 4\n",
		"config.json": `{"ociVersion":"1.1.0","windows":{"layerFolders":["C:\\layer"]}}`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// keptTo returns a call's arguments, kept to dir.
func keptTo(args []string, dir string) []string {
	root := newCommand()
	called, _, err := root.Find(args)
	if args[0] == "__complete" {
		called, _, err = root.Find(args[1:])
	}
	kept := make([]string, 0, len(args))
	kept = append(kept, args...)
	if err == nil {
		var flags []string
		for name, value := range places {
			// Without containerd, --config is our own file.
			if name == "config" && called.Flags().Lookup("cri-socket") == nil || called.Name() == "allocations" && name == "config" {
				value = "DIRECTORY/none.yaml"
			}
			// Who assumes the files has no root to look for them.
			if called.Flags().Lookup(name) != nil && (name != "host-root" || !slices.Contains(args, "--assume-files")) {
				flags = append(flags, "--"+name+"="+value)
			}
		}
		// Behind the command's name, before what is no flag.
		at := len(strings.Fields(called.CommandPath())) - 1
		if args[0] == "__complete" {
			at++
		}
		kept = append(append(append([]string{}, args[:at]...), flags...), args[at:]...)
	}
	for i := range kept {
		kept[i] = strings.ReplaceAll(kept[i], "DIRECTORY", dir)
	}
	return kept
}

// BenchmarkCommand runs the program, as a person does: from its start to its end.
func BenchmarkCommand(b *testing.B) {
	dir := eightGPUs(b)
	program := filepath.Join(dir, "dxctl")
	if runtime.GOOS == "windows" {
		program += ".exe"
	}
	// As make builds it.
	build := exec.CommandContext(b.Context(), "go", "build", "-trimpath", "-buildvcs=false", "-tags", "grpcnotrace", "-ldflags", "-s -w", "-o", program, ".")
	if out, err := build.CombinedOutput(); err != nil {
		b.Fatalf("%v\n%s", err, out)
	}
	for _, name := range slices.Sorted(maps.Keys(calls)) {
		args := keptTo(calls[name], dir)
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				command := exec.CommandContext(b.Context(), program, args...)
				var stderr bytes.Buffer
				command.Stderr = &stderr
				err := command.Run()
				// Here is no containerd, and no shim: 1 is an answer.
				if exit := (&exec.ExitError{}); err != nil && !errors.As(err, &exit) || strings.Contains(stderr.String(), "Try 'dxctl") {
					b.Fatalf("dxctl %s: %v\n%s", strings.Join(args, " "), err, stderr.String())
				}
			}
			b.ReportMetric(float64(b.Elapsed().Milliseconds())/float64(b.N), "ms/command")
		})
	}
}

func TestEachCommandIsMeasured(t *testing.T) {
	t.Parallel()
	measured := map[*cobra.Command]bool{}
	root := newCommand()
	for name, args := range calls {
		if name == "__complete" { // It is there when the program runs.
			continue
		}
		called, _, err := root.Find(args)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		measured[called] = true
	}
	for _, command := range everyCommand(root) {
		if command.Runnable() && !measured[command] {
			t.Errorf("%s is missing", command.CommandPath())
		}
	}
}
