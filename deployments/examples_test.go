//go:build unix

package deployments

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"directx-nri/advertiser/resources"
	"directx-nri/cmd/dxctl/simulate"
	"directx-nri/discovery"
	"directx-nri/discovery/inventory"
	"directx-nri/internal/config"
	"directx-nri/internal/testutil"
)

// example is one manifest of the examples.
type example struct {
	file string // from the folder examples, with slashes
	text []byte
	meta metav1.ObjectMeta
	pod  corev1.PodSpec
}

func (e example) linux() bool { return strings.HasPrefix(e.file, "linux/") }

// examples reads all manifests strictly. Each has one pod, or one job.
func examples(t *testing.T) []example {
	t.Helper()
	var found []example
	err := filepath.WalkDir("examples", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(name) != ".yaml" || entry.Name() == "values.yaml" {
			return err
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		file, err := filepath.Rel("examples", name)
		if err != nil {
			return err
		}
		e := example{file: filepath.ToSlash(file), text: text}
		var kind metav1.TypeMeta
		if err := yaml.Unmarshal(text, &kind); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		switch kind.APIVersion + " " + kind.Kind {
		case "v1 Pod":
			var pod corev1.Pod
			err = yaml.UnmarshalStrict(text, &pod)
			e.meta, e.pod = pod.ObjectMeta, pod.Spec
		case "batch/v1 Job":
			var job batchv1.Job
			err = yaml.UnmarshalStrict(text, &job)
			e.meta, e.pod = job.ObjectMeta, job.Spec.Template.Spec
		default:
			err = fmt.Errorf("nothing of kind %s belongs here", kind.Kind)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		found = append(found, e)
		return nil
	})
	if err != nil || len(found) < 20 {
		t.Fatal(len(found), err)
	}
	return found
}

// values are what linux/values.yaml has for the chart.
type values struct {
	Windows, Linux    struct{ Enabled bool }
	Config, Inventory map[string]any
}

// simulatedNode returns the configuration and the inventory of linux/values.yaml,
// as the chart puts them onto nodes.
func simulatedNode(t *testing.T) (config.Config, []byte) {
	t.Helper()
	var v values
	if err := yaml.UnmarshalStrict(readExample(t, "linux/values.yaml"), &v); err != nil {
		t.Fatal(err)
	}
	if v.Windows.Enabled || !v.Linux.Enabled {
		t.Error("linux/values.yaml is not for Linux nodes alone")
	}
	v.Config["apiVersion"], v.Config["kind"] = config.APIVersion, config.Kind
	text, err := yaml.Marshal(v.Config)
	if err != nil {
		t.Fatal(err)
	}
	c, err := config.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	gpus, err := yaml.Marshal(v.Inventory)
	if err != nil {
		t.Fatal(err)
	}
	return c, gpus
}

func readExample(t *testing.T, file string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("examples", filepath.FromSlash(file)))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// configurationOf returns the configuration that an example names or needs.
func configurationOf(t *testing.T, e example) config.Config {
	t.Helper()
	if e.linux() {
		c, _ := simulatedNode(t)
		return c
	}
	if !slices.Contains([]string{"shared-gpu.yaml", "per-model.yaml"}, e.file) {
		return config.Default()
	}
	text, err := os.ReadFile("config/windows.yaml")
	if err != nil {
		t.Fatal(err)
	}
	c, err := config.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// An example can be applied as it stands: it says where it runs, what it asks for
// is offered, what it mounts is there, and its README tells of it.
func TestExamples(t *testing.T) {
	t.Parallel()
	names := map[string]string{}
	for _, e := range examples(t) {
		system, readme, file := "windows", "README.md", e.file
		if e.linux() {
			system, readme, file = "linux", "linux/README.md", strings.TrimPrefix(e.file, "linux/")
		}
		if !bytes.Contains(readExample(t, readme), []byte("`"+file+"`")) {
			t.Errorf("%s: %s does not tell of it", e.file, readme)
		}
		if e.pod.NodeSelector["kubernetes.io/os"] != system {
			t.Errorf("%s: it may come to a node of another system", e.file)
		}
		if e.pod.RestartPolicy != corev1.RestartPolicyNever {
			t.Errorf("%s: it is run again and again", e.file)
		}
		if other := names[e.meta.Name]; other != "" {
			t.Errorf("%s: %s has its name", e.file, other)
		}
		names[e.meta.Name] = e.file
		offered := resources.Names(configurationOf(t, e).Resources)
		for _, c := range e.pod.Containers {
			for resource := range c.Resources.Limits {
				if !slices.Contains(offered, string(resource)) {
					t.Errorf("%s: nobody offers %s", e.file, resource)
				}
				if kind := strings.TrimSuffix(filepath.Base(e.file), ".yaml"); (kind == "display" || kind == "compute") && !strings.HasSuffix(string(resource), "/"+kind) {
					t.Errorf("%s asks for %s", e.file, resource)
				}
			}
			if len(c.Resources.Limits) != 1 && e.file != "linux/no-gpu.yaml" {
				t.Errorf("%s: it asks for %v", e.file, c.Resources.Limits)
			}
			if strings.Contains(c.Image, ":latest") || !strings.Contains(c.Image, ":") {
				t.Errorf("%s: image %s is another one tomorrow", e.file, c.Image)
			}
			if !e.linux() && !bytes.Contains(readExample(t, "README.md"), []byte("`"+c.Image+"`")) {
				t.Errorf("%s: README.md does not tell of image %s", e.file, c.Image)
			}
			mustHaveProgram(t, e, c)
		}
	}
}

// mustHaveProgram sees that a program of ours is one that build.sh makes, and that
// the container has the ConfigMap that it comes by.
func mustHaveProgram(t *testing.T, e example, c corev1.Container) {
	t.Helper()
	name, ours := strings.CutPrefix(strings.Join(c.Command[:min(1, len(c.Command))], ""), `C:\examples\`)
	if !ours {
		if len(e.pod.Volumes) != 0 {
			t.Errorf("%s: it mounts what it does not use", e.file)
		}
		return
	}
	sources, err := filepath.Glob("examples/programs/" + strings.TrimSuffix(name, ".exe") + ".c*")
	if err != nil || len(sources) != 1 {
		t.Errorf("%s: %s has sources %v (%v)", e.file, name, sources, err)
	}
	if len(e.pod.Volumes) != 1 || e.pod.Volumes[0].ConfigMap == nil || e.pod.Volumes[0].ConfigMap.Name != "gpu-examples" ||
		len(c.VolumeMounts) != 1 || c.VolumeMounts[0].MountPath != `C:\examples` {
		t.Errorf("%s: %s does not come by the ConfigMap", e.file, name)
	}
}

// Every example gets its GPU on a node that has one, and a compute example says on
// a node with display GPUs alone why it waits.
func TestExamplesRun(t *testing.T) {
	t.Parallel()
	g4dn, err := os.ReadFile("inventory/windows-g4dn.yaml")
	if err != nil {
		t.Fatal(err)
	}
	_, simulated := simulatedNode(t)
	write := func(text []byte) discovery.Source {
		file := filepath.Join(t.TempDir(), "gpus.yaml")
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		return inventory.Open(file, testutil.Quiet())
	}
	display := write(g4dn)
	compute := write(bytes.ReplaceAll(g4dn, []byte("display: true"), []byte("display: false")))
	linux := write(simulated)
	for _, e := range examples(t) {
		t.Run(e.file, func(t *testing.T) {
			t.Parallel()
			run := func(source discovery.Source) simulate.Report {
				workloads, _, err := simulate.Read(bytes.NewReader(e.text))
				if err != nil {
					t.Fatal(err)
				}
				report, err := simulate.Run(t.Context(), simulate.Node{Source: source, Config: configurationOf(t, e)}, workloads, 0)
				if err != nil {
					t.Fatal(err)
				}
				return report
			}
			source := display
			switch {
			case e.linux():
				source = linux
			case filepath.Base(e.file) == "compute.yaml":
				source = compute
				if report := run(display); report.Failed() != 1 || !strings.Contains(why(report), "Insufficient directx.microsoft.com/compute") {
					t.Errorf("with display GPUs alone: %s", why(report))
				}
			}
			report := run(source)
			if report.Failed() > 0 {
				t.Fatal(why(report))
			}
			gpus := map[string]bool{}
			for _, pod := range report.Pods {
				for _, c := range pod.Containers {
					if want := map[string]string{"extra-mounts.yaml": "nvidia-pcc.exe", "per-model.yaml": "nvidia-smi.exe", "linux/extra-mounts.yaml": "node-release"}[e.file]; !bytes.Contains(c.After, []byte(want)) {
						t.Errorf("no %s in %s", want, c.After)
					}
					for _, a := range c.Allocations {
						for _, r := range a.Replicas {
							gpus[r.LocationPath] = true
						}
					}
				}
			}
			if want := map[string]int{"linux/no-gpu.yaml": 0, "linux/two-gpus.yaml": 2, "linux/job.yaml": 2}; len(gpus) != 1 && len(gpus) != want[e.file] {
				t.Errorf("it has %v", gpus)
			}
		})
	}
}

// why tells the reasons for which pods and containers do not run.
func why(report simulate.Report) string {
	var reasons []string
	for _, pod := range report.Pods {
		reasons = append(reasons, pod.Reason)
		for _, c := range pod.Containers {
			reasons = append(reasons, c.Reason)
		}
	}
	return strings.Join(reasons, "\n")
}

// Each example of the simulated node has its expected output, and there is none
// without an example.
func TestExpectedOutputs(t *testing.T) {
	t.Parallel()
	expected, err := filepath.Glob("examples/linux/*.expected.txt")
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, e := range examples(t) {
		if e.linux() {
			want = append(want, "examples/"+strings.TrimSuffix(e.file, ".yaml")+".expected.txt")
		}
	}
	slices.Sort(want)
	if !slices.Equal(expected, want) {
		t.Errorf("there are %v, want %v", expected, want)
	}
	for _, file := range expected {
		if text, err := os.ReadFile(file); err != nil || !bytes.HasSuffix(text, []byte("\n")) || bytes.Contains(text, []byte("\n\n")) {
			t.Errorf("%s: %q, %v", file, text, err)
		}
	}
}

// The kernel that the programs carry is the one that is beside them.
func TestKernelIsCurrent(t *testing.T) {
	t.Parallel()
	source, made := readExample(t, "programs/montecarlo.cl"), readExample(t, "programs/montecarlo.h")
	text, _, _ := strings.Cut(string(made), "montecarlo_ptx")
	var carried strings.Builder
	unquote := strings.NewReplacer(`\\`, `\`, `\"`, `"`, `\t`, "\t", `\n`, "\n")
	for _, line := range regexp.MustCompile(`(?m)^    "(.*)"(;?)$`).FindAllStringSubmatch(text, -1) {
		carried.WriteString(unquote.Replace(line[1]))
	}
	if carried.String() != string(source) {
		t.Error("montecarlo.h is not made of montecarlo.cl: run examples/programs/build.sh --kernel")
	}
	if !bytes.Contains(made, []byte(".visible .entry montecarlo(")) {
		t.Error("montecarlo.h has no kernel for NVIDIA's driver")
	}
}

// The commands of standalone.md have flags that ctr and nerdctl take, and what
// these want behind them.
func TestStandaloneCommands(t *testing.T) {
	t.Parallel()
	// The flags that are used, and whether a value follows: of ctr 1.7 and 2.x, and
	// of nerdctl 2.
	flags := map[string]map[string]bool{
		"ctr":     {"--rm": false, "--runtime": true, "--env": true},
		"nerdctl": {"--rm": false, "--runtime": true, "-e": true, "-v": true},
	}
	seen := map[string]int{}
	for _, command := range regexp.MustCompile(`(?m)^[>#] (ctr|nerdctl) run (.*)$`).FindAllStringSubmatch(string(readExample(t, "standalone.md")), -1) {
		program, words := command[1], strings.Fields(command[2])
		seen[program]++
		request := false
		for len(words) > 0 && strings.HasPrefix(words[0], "-") {
			value, known := flags[program][words[0]]
			if !known {
				t.Errorf("%s: %s is no flag of %s", command[0], words[0], program)
			}
			if value {
				words = words[1:]
				request = request || strings.HasPrefix(words[0], "DIRECTX_VISIBLE_DEVICES=")
			}
			words = words[1:]
		}
		// ctr wants an image's whole name, and a name for the container.
		least, whole := 2, true
		if program == "ctr" {
			least, whole = 3, strings.Contains(words[0], ".") && strings.Contains(words[0], "/")
		}
		if len(words) < least || !whole || !strings.Contains(words[0], ":") || !request || !strings.Contains(command[2], "--runtime io.containerd.directx.v1 ") {
			t.Errorf("%s: %q is left", command[0], words)
		}
	}
	if seen["ctr"] < 3 || seen["nerdctl"] < 3 {
		t.Errorf("there are %v", seen)
	}
}
