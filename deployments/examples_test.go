//go:build chart && unix

package deployments

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/directx-nri/directx-nri/decision/extramounts"
	"github.com/directx-nri/directx-nri/internal/paths"
)

// example is one manifest of the examples.
type example struct {
	file        string // relative to the directory examples, with slashes
	pod         corev1.PodSpec
	annotations map[string]string // the pod's
}

// examples decodes all example manifests strictly. Each file has one pod or one job.
func examples(t *testing.T) (found []example) {
	t.Helper()
	files, err := fs.Glob(os.DirFS("examples"), "*.yaml")
	below, belowErr := fs.Glob(os.DirFS("examples"), "*/*.yaml")
	others := []string{"linux/values.yaml", "driver-install/daemonset.yaml"}
	for _, file := range slices.DeleteFunc(append(files, below...), func(file string) bool { return slices.Contains(others, file) }) {
		decoded, err := decode(readExample(t, file))
		if err != nil || len(decoded) != 1 {
			t.Fatalf("%s: %d objects, %v", file, len(decoded), err)
		}
		switch o := decoded[0].(type) {
		case *corev1.Pod:
			found = append(found, example{file, o.Spec, o.Annotations})
		case *batchv1.Job:
			found = append(found, example{file, o.Spec.Template.Spec, o.Spec.Template.Annotations})
		default:
			t.Fatalf("%s: unexpected kind %T", file, o)
		}
	}
	if err := errors.Join(err, belowErr); err != nil || len(found) < 30 {
		t.Fatalf("%d examples: %v", len(found), err)
	}
	return found
}

func readExample(t *testing.T, file string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("examples", filepath.FromSlash(file)))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// The examples select the right nodes, request what nodes offer, and run programs that exist. The cluster suite runs
// those for Linux.
func TestExamples(t *testing.T) {
	t.Parallel()
	for _, e := range examples(t) {
		t.Run(e.file, func(t *testing.T) {
			t.Parallel()
			system := "windows"
			if strings.HasPrefix(e.file, "linux/") {
				system = "linux"
			}
			if got := e.pod.NodeSelector["kubernetes.io/os"]; got != system {
				t.Errorf("node selector kubernetes.io/os is %q, want %q", got, system)
			}
			for name, text := range e.annotations {
				// What the list names is not on this machine.
				_, err := extramounts.Resolver{}.Mounts([]extramounts.List{{Origin: name, Text: text}}, nil, nil)
				if err != nil && strings.Contains(err.Error(), "not a list of files") {
					t.Error(err)
				}
			}
			for _, c := range e.pod.Containers {
				if system == "windows" {
					checkExampleContainer(t, e, c)
				}
			}
		})
	}
}

// copiedProgram matches a command that copies files of the ConfigMap and runs one.
var copiedProgram = regexp.MustCompile(`^cmd\.exe /c copy C:\\examples\\(\S+) C:\\ >nul && C:\\((\w+)\.(?:exe|cmd))( pi)?$`)

func checkExampleContainer(t *testing.T, e example, c corev1.Container) {
	t.Helper()
	if len(c.Resources.Limits) != 1 {
		t.Errorf("limits are %v", c.Resources.Limits)
	}
	for resource := range c.Resources.Limits {
		standard := resource == "directx.microsoft.com/display" || resource == "directx.microsoft.com/compute"
		if !standard && !bytes.Contains(readExample(t, "../config/windows.yaml"), []byte("- name: "+string(resource)+"\n")) {
			t.Errorf("no node offers %s", resource)
		}
	}
	if len(e.pod.Volumes) == 0 {
		return
	}
	if e.pod.Volumes[0].HostPath != nil {
		checkProbe(t, e.pod)
		return
	}
	// A program of this repository is one that build.sh builds. It is copied from a ConfigMap's volume, whose files are
	// symbolic links: Windows does not run programs through those.
	command := copiedProgram.FindStringSubmatch(strings.Join(c.Command, " "))
	if command == nil || command[1] != "*" && command[1] != command[2] {
		t.Fatalf("command is %q", c.Command)
	}
	sources, err := filepath.Glob("examples/programs/" + command[3] + ".c*")
	if err != nil || len(sources) != 1 || e.pod.Volumes[0].ConfigMap == nil || e.pod.Volumes[0].ConfigMap.Name != "gpu-examples" {
		t.Errorf("sources of %s are %v (%v), volumes %v", command[2], sources, err, e.pod.Volumes)
	}
}

// checkProbe checks that a pod on Windows runs the dxctl that the advertiser has copied, and waits for it.
func checkProbe(t *testing.T, pod corev1.PodSpec) {
	t.Helper()
	const mounted = `C:\directx-nri`
	host, container := pod.Volumes[0].HostPath, pod.Containers[0]
	copied := `C:\ProgramData\directx-nri\` + strings.ReplaceAll(paths.DxctlFile, "/", `\`)
	if *host.Type != corev1.HostPathDirectory || container.VolumeMounts[0].MountPath != mounted || !container.VolumeMounts[0].ReadOnly ||
		host.Path+strings.TrimPrefix(container.Command[0], mounted) != copied || container.Command[1] != "probe" {
		t.Errorf("%q does not run %s: %+v", container.Command, copied, pod)
	}
}

// montecarlo.h contains montecarlo.cl and what clang makes of it.
func TestKernelIsCurrent(t *testing.T) {
	t.Parallel()
	source, generated := readExample(t, "programs/montecarlo.cl"), string(readExample(t, "programs/montecarlo.h"))
	quoted := strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\t", `\t`).Replace(string(source))
	for line := range strings.Lines(quoted) {
		if !strings.Contains(generated, `    "`+strings.TrimSuffix(line, "\n")+`\n"`) {
			t.Errorf("montecarlo.h is outdated: run examples/programs/build.sh --kernel: %s", line)
		}
	}
}
