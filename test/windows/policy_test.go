//go:build e2e && linux

package windows

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"directx-nri/internal/allocation"
	"directx-nri/nri/decision"
	"directx-nri/ocispec"
	"directx-nri/test/windows/bed"
)

// policy is a node whose configuration the parts of TestPolicy change, one after
// the other.
type policy struct {
	node
	pod bed.Pod

	mu   sync.Mutex
	next int // the number of the next container
	// passed and refused count the starts that asked for a GPU.
	passed, refused int
}

// TestPolicy has what the configuration says of a container come to HCS.
func TestPolicy(t *testing.T) {
	t.Parallel()
	inventory := bed.NewInventory("policy")
	inventory.GPUs[0].UUID = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"
	inventory.GPUs[0].Files = append(inventory.GPUs[0].Files,
		bed.File{Source: "nvidia-smi.exe", Unlisted: true},
		bed.File{Source: "vulkaninfo-x64.exe", Unlisted: true},
		bed.File{Source: "vulkaninfo-x86.exe", Unlisted: true},
		bed.File{Source: `tools\trace.dll`, Unlisted: true},
		bed.File{Source: `tools\other.txt`, Unlisted: true},
	)
	p := &policy{node: node{start(t, bed.Options{Name: "policy", Inventory: inventory}), inventory.GPUs}}
	p.pod = p.sandbox(t, bed.Directx, p.name("pod"))
	for _, part := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"the class of all GPUs and the files of one", p.testClass},
		{"files that the configuration adds and removes", p.testRuntimeFiles},
		{"files that a container asks for", p.testExtraMounts},
		{"variables tell which GPU is whose", p.testHints},
		{"an invalid file changes nothing", p.testInvalid},
	} {
		if !t.Run(part.name, part.run) {
			t.Logf("---- the configuration\n%s", readFile(t, p.ConfigFile()))
		}
	}
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Error(err)
	}
	return string(data)
}

// id returns an ID for the next container.
func (p *policy) id() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next++
	return fmt.Sprintf("%s-%d", p.name("app"), p.next)
}

// allocatedTo starts a pod's container with those GPUs and whatever change adds.
func (p *policy) allocatedTo(t *testing.T, change func(*specs.Spec), gpus ...bed.GPU) (id string, err error) {
	t.Helper()
	id = p.id()
	var replicas []allocation.Replica
	for i, g := range gpus {
		replica := g.Replica(i)
		replica.UUID = g.UUID
		replicas = append(replicas, replica)
	}
	spec := p.ContainerSpec(t, p.pod, id, "app-"+id)
	bed.Allocate(spec, bed.Display, p.Record(t, bed.Display, replicas...))
	return p.count(id, p.start(t, id, spec, change))
}

// asking starts a standalone container with a request and whatever change adds.
func (p *policy) asking(t *testing.T, request string, change func(*specs.Spec)) (id string, err error) {
	t.Helper()
	id = p.id()
	spec := p.Standalone(t, id)
	spec.Process.Env = append(spec.Process.Env, "DIRECTX_VISIBLE_DEVICES="+request)
	return p.count(id, p.start(t, id, spec, change))
}

func (p *policy) start(t *testing.T, id string, spec *specs.Spec, change func(*specs.Spec)) error {
	t.Helper()
	if change != nil {
		change(spec)
	}
	return p.Run(t, bed.Directx, id, bed.JSON(t, spec))
}

func (p *policy) count(id string, err error) (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		p.refused++
	} else {
		p.passed++
	}
	return id, err
}

// mustRunBoth starts a container in both ways, with those GPUs, and calls check on
// each.
func (p *policy) mustRunBoth(t *testing.T, change func(*specs.Spec), check func(t *testing.T, id string), gpus ...bed.GPU) {
	t.Helper()
	var locations []string
	for _, g := range gpus {
		locations = append(locations, g.Location)
	}
	// The configuration is another when this returns: not before both are done.
	t.Run("gets them", func(t *testing.T) {
		for how, run := range map[string]func(*testing.T) (string, error){
			"in a pod":   func(t *testing.T) (string, error) { return p.allocatedTo(t, change, gpus...) },
			"standalone": func(t *testing.T) (string, error) { return p.asking(t, strings.Join(locations, ","), change) },
		} {
			t.Run(how, func(t *testing.T) {
				t.Parallel()
				id, err := run(t)
				if err != nil {
					t.Fatalf("start: %v", err)
				}
				check(t, id)
			})
		}
	})
}

// mustHaveClass fails the test unless container id has the class of all GPUs, and
// the files of gpus alone.
func (p *policy) mustHaveClass(t *testing.T, id string, gpus ...bed.GPU) {
	t.Helper()
	document := p.Document(t, id)
	if len(document.AssignedDevices) != 1 || document.AssignedDevices[0].InterfaceClassGUID != displayClass || document.AssignedDevices[0].LocationPath != "" {
		t.Errorf("AssignedDevices are %+v, want the class alone", document.AssignedDevices)
	}
	want := slices.Concat(only(gpus...), p.builtIn(gpus...))
	bed.SortMapped(want)
	mustMap(t, id, document, want)
}

// builtIn are the files that NVIDIA's drivers do not list and containers get.
func (p *policy) builtIn(gpus ...bed.GPU) []bed.Mapped {
	var mounts []bed.Mapped
	for _, g := range gpus {
		if g.InstanceID == p.gpus[0].InstanceID {
			mounts = append(mounts, file(g, "nvidia-smi.exe", `C:\Windows\System32\nvidia-smi.exe`),
				file(g, "vulkaninfo-x64.exe", `C:\Windows\System32\vulkaninfo.exe`),
				file(g, "vulkaninfo-x86.exe", `C:\Windows\SysWOW64\vulkaninfo.exe`))
		}
	}
	return mounts
}

// file is a file of a GPU's driver in a container.
func file(g bed.GPU, source, destination string) bed.Mapped {
	return bed.Mapped{HostPath: g.Store + `\` + source, ContainerPath: destination, ReadOnly: true}
}

// mustHaveFiles fails the test unless container id has exactly those files, and
// each GPU by itself.
func (p *policy) mustHaveFiles(t *testing.T, id string, gpus []bed.GPU, mounts ...[]bed.Mapped) {
	t.Helper()
	document := p.Document(t, id)
	for _, g := range gpus {
		if !slices.Contains(document.Locations(), g.Location) {
			t.Errorf("AssignedDevices are %+v, want %s", document.AssignedDevices, g.Location)
		}
	}
	want := slices.Concat(mounts...)
	bed.SortMapped(want)
	mustMap(t, id, document, want)
}

func (p *policy) testClass(t *testing.T) {
	p.WriteSettings(t, "assignmentMode: class-guid\n")
	p.mustRunBoth(t, nil, func(t *testing.T, id string) { p.mustHaveClass(t, id, p.gpus[1]) }, p.gpus[1])
	p.mustRunBoth(t, nil, func(t *testing.T, id string) { p.mustHaveClass(t, id, p.gpus...) }, p.gpus...)
}

// testAssignment is part of TestDiscovery, as there is one HCS for all nodes.
func testAssignment(t *testing.T) {
	inventory := bed.NewInventory("assignment")
	p := &policy{node: node{start(t, bed.Options{Name: "assignment", Inventory: inventory, Settings: "assignmentMode: auto\n", HCSAnswers: true}), inventory.GPUs}}
	p.pod = p.sandbox(t, bed.Directx, p.name("pod"))
	for _, test := range []struct {
		name, properties string
		byClass          bool
	}{
		{"of Windows Server 2019", schemas(0, 1), true},
		{"of Windows Server 2022", schemas(0, 1, 2, 3, 4, 5), false},
		// Wine's build, 18362, is one of no Windows that can.
		{"that refuses to answer", "", true},
	} {
		t.Run("an HCS "+test.name, func(t *testing.T) {
			wine.SetHCSProperties(t, test.properties)
			p.mustRunBoth(t, nil, func(t *testing.T, id string) {
				if test.byClass {
					p.mustHaveClass(t, id, p.gpus[1])
				} else {
					p.mustHave(t, id, p.gpus[1])
				}
			}, p.gpus[1])
		})
	}
}

// schemas is what the Host Compute Service tells of itself that knows schema 1.0 and
// those of version 2.
func schemas(minors ...int) string {
	var versions []string
	for _, minor := range minors {
		versions = append(versions, fmt.Sprintf(`{"Major":2,"Minor":%d}`, minor))
	}
	return `{"Properties":[{"SupportedSchemaVersions":[{"Major":1,"Minor":0},` + strings.Join(versions, ",") + `]}]}`
}

func (p *policy) testRuntimeFiles(t *testing.T) {
	p.WriteSettings(t, "assignmentMode: location-path\n")
	first := p.gpus[:1]
	p.mustRunBoth(t, nil, func(t *testing.T, id string) {
		p.mustHaveFiles(t, id, first, only(first...), p.builtIn(first...))
	}, first...)
	p.WriteSettings(t, `assignmentMode: location-path
runtimeFiles:
  nvidia:
    remove: ['NVAPI*.dll', vulkaninfo-x86.exe]
    add:
      - {source: 'tools\*.dll', directory: SysWOW64}
      - {source: tools\other.txt, destination: renamed.txt}
      - never-there.dll
`)
	p.mustRunBoth(t, nil, func(t *testing.T, id string) {
		kept := slices.DeleteFunc(slices.Concat(only(first...), p.builtIn(first...)), func(m bed.Mapped) bool {
			return strings.HasSuffix(m.HostPath, "nvapi64.dll") || strings.HasSuffix(m.HostPath, "vulkaninfo-x86.exe")
		})
		p.mustHaveFiles(t, id, first, kept, []bed.Mapped{
			file(first[0], `tools\trace.dll`, `C:\Windows\SysWOW64\trace.dll`), file(first[0], `tools\other.txt`, `C:\Windows\System32\renamed.txt`),
		})
	}, first...)
	// Another vendor's settings are not for it.
	p.WriteSettings(t, "assignmentMode: location-path\nruntimeFiles: {nvidia: {defaults: false}, amd: {remove: ['*']}}\n")
	p.mustRunBoth(t, nil, func(t *testing.T, id string) { p.mustHaveFiles(t, id, first, only(first...)) }, first...)
}

// extra asks for files: by the annotation in a pod, by the variable elsewhere.
func extra(list string) func(*specs.Spec) {
	return func(s *specs.Spec) {
		if s.Annotations["io.kubernetes.cri.container-type"] != "" {
			s.Annotations[decision.ExtraMountsAnnotation] = list
			return
		}
		s.Process.Env = append(s.Process.Env, decision.ExtraMountsVariable+"="+list)
	}
}

const extraSettings = `assignmentMode: location-path
runtimeFiles: {nvidia: {defaults: false}}
extraMounts:
  sources: %s
  hostDirectories: ['C:\policy-tools']
  destinations: ['C:\Windows\System32', 'C:\Windows\SysWOW64', 'C:\app']
  max: 3
`

func (p *policy) testExtraMounts(t *testing.T) {
	p.WriteSettings(t, fmt.Sprintf(extraSettings, "host-directories"))
	for path, content := range map[string]string{`C:\policy-tools\Long tool name.exe`: "tool", `C:\policy-secret\key.pem`: "key"} {
		path = p.Linux(path)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	first := p.gpus[:1]
	t.Run("of the driver store and of a folder", func(t *testing.T) {
		list := `[nvidia-smi.exe, {source: tools/trace.dll, directory: SysWOW64}, {source: 'C:\policy-tools\Long tool name.exe', destination: 'C:\app\tool.exe'}]`
		p.mustRunBoth(t, extra(list), func(t *testing.T, id string) {
			p.mustHaveFiles(t, id, first, only(first...), []bed.Mapped{
				file(first[0], "nvidia-smi.exe", `C:\Windows\System32\nvidia-smi.exe`),
				file(first[0], `tools\trace.dll`, `C:\Windows\SysWOW64\trace.dll`),
				{HostPath: `C:\policy-tools\Long tool name.exe`, ContainerPath: `C:\app\tool.exe`, ReadOnly: true},
			})
		}, first...)
	})
	t.Run("for one container of the pod", func(t *testing.T) {
		for of, mounts := range map[string][]bed.Mapped{
			"another": nil, "app": {file(first[0], "nvidia-smi.exe", `C:\Windows\System32\nvidia-smi.exe`)},
		} {
			id, err := p.allocatedTo(t, func(s *specs.Spec) {
				s.Annotations["io.kubernetes.cri.container-name"] = "app"
				s.Annotations[decision.ExtraMountsAnnotation+"."+of] = "[nvidia-smi.exe]"
			}, first...)
			if err != nil {
				t.Fatalf("start: %v", err)
			}
			p.mustHaveFiles(t, id, first, only(first...), mounts)
		}
	})
	type refusal struct{ name, list, says string }
	// They are refused side by side, and all are before this returns.
	refused := func(name string, rows ...refusal) {
		t.Run(name, func(t *testing.T) {
			for _, row := range rows {
				t.Run(row.name, func(t *testing.T) {
					t.Parallel()
					id, err := p.allocatedTo(t, extra(row.list), first...)
					p.mustRefuse(t, id, err, row.says, "extra mounts", "pod default/"+p.pod.Name)
					p.mustLeaveNothing(t, id)
					id, err = p.asking(t, "0", extra(row.list))
					p.mustRefuse(t, id, err, row.says, "extra mounts", decision.ExtraMountsVariable)
					p.mustLeaveNothing(t, id)
				})
			}
		})
	}
	refused("what is not allowed",
		refusal{"a stream", `['nvidia-smi.exe:secret']`, "alternate data stream"},
		refusal{"the file's own stream", `['nvidia-smi.exe::$DATA']`, "alternate data stream"},
		refusal{"a stream at the destination", `[{source: nvidia-smi.exe, destination: 'a.exe:b'}]`, "alternate data stream"},
		refusal{"a device path", `['\\.\C:\policy-tools\x.exe']`, "device paths"},
		refusal{"a literal path", `['\\?\C:\policy-tools\x.exe']`, "device paths"},
		refusal{"a network path", `['\\server\share\x.exe']`, "network paths"},
		refusal{"a network path with slashes", `[//server/share/x.exe]`, "network paths"},
		refusal{"a device of DOS", `[NUL]`, "reserved for a device"},
		refusal{"a device of DOS with an extension", `[{source: nvidia-smi.exe, destination: com1.exe}]`, "reserved for a device"},
		refusal{"a short name", `['C:\policy-tools\LONGTO~1.EXE']`, "8.3"},
		refusal{"a dot at the end", `[nvidia-smi.exe.]`, "ends with a dot"},
		refusal{"dots", `['tools\..\..\policy1.inf_amd64_0f2a6b1c9d8e7354\amdhip64.dll']`, `".."`},
		refusal{"a path of a drive's current folder", `['C:x.exe']`, "neither relative nor"},
		refusal{"elsewhere", `['C:\policy-secret\key.pem']`, "files from there are not allowed"},
		refusal{"the driver of another GPU", `['` + p.gpus[1].Store + `\amdhip64.dll']`, "files from there are not allowed"},
		refusal{"a folder", `[tools]`, "not a regular file"},
		refusal{"missing", `[nothing.dll]`, "no such file"},
		refusal{"a file of Windows", `[{source: nvidia-smi.exe, destination: KERNEL32.dll}]`, "a file of Windows cannot be replaced"},
		refusal{"a file of the driver", `[{source: nvidia-smi.exe, destination: nvcuda.dll}]`, "another file is mounted there"},
		refusal{"a destination elsewhere", `[{source: nvidia-smi.exe, destination: 'C:\Users\x.exe'}]`, "destination is not allowed"},
		refusal{"too many", `[a.dll, b.dll, c.dll, d.dll]`, "4 files requested, 3 allowed"},
		refusal{"no list", `nvidia-smi.exe`, "correct it"},
	)
	p.WriteSettings(t, fmt.Sprintf(extraSettings, "off"))
	refused("off", refusal{"off", `[nvidia-smi.exe]`, "extra mounts are disabled on this node"})
	p.WriteSettings(t, fmt.Sprintf(extraSettings, "driver-store"))
	refused("the driver store alone", refusal{"a folder that is not in force", `['C:\policy-tools\Long tool name.exe']`, "files from there are not allowed"})

	t.Run("what was refused has bound nothing", func(t *testing.T) {
		id := p.id()
		token := p.Record(t, bed.Display, first[0].Replica(0))
		run := func(id, list string) error {
			spec := p.ContainerSpec(t, p.pod, id, "again")
			bed.Allocate(spec, bed.Display, token)
			return p.start(t, id, spec, extra(list))
		}
		_, err := p.count(id, run(id, "[nothing.dll]"))
		p.mustRefuse(t, id, err, "no such file")
		if _, bound, err := allocation.OpenStore(filepath.Dir(p.RecordFile(token))).Holder(token); bound || err != nil {
			t.Errorf("the allocation is bound: %t, %v", bound, err)
		}
		id = p.id()
		if _, err := p.count(id, run(id, "[nvidia-smi.exe]")); err != nil {
			t.Fatalf("start: %v", err)
		}
		p.mustHaveFiles(t, id, first, only(first...), []bed.Mapped{file(first[0], "nvidia-smi.exe", `C:\Windows\System32\nvidia-smi.exe`)})
	})
}

// variables are those that HCS was told of the container's first process.
func (p *policy) variables(t *testing.T, id string) map[string]string {
	t.Helper()
	for _, call := range p.Calls(t, id) {
		if call.Name != "HcsCreateProcess" {
			continue
		}
		var process struct{ Environment map[string]string }
		if err := json.Unmarshal([]byte(call.Text), &process); err != nil {
			t.Fatalf("read %s: %v", call.Text, err)
		}
		return process.Environment
	}
	t.Fatalf("HCS was told of no process of %s", id)
	return nil
}

func (p *policy) testHints(t *testing.T) {
	p.WriteSettings(t, "assignmentMode: location-path\n")
	check := func(gpus []bed.GPU, cuda string) func(t *testing.T, id string) {
		return func(t *testing.T, id string) {
			t.Helper()
			variables := p.variables(t, id)
			var hints []ocispec.Hint
			if err := json.Unmarshal([]byte(variables[ocispec.DevicesVariable]), &hints); err != nil || len(hints) != len(gpus) {
				t.Fatalf("%s is %q (%v), want %d GPUs", ocispec.DevicesVariable, variables[ocispec.DevicesVariable], err, len(gpus))
			}
			for i, g := range gpus {
				if h := hints[i]; h.LocationPath != g.Location || h.LUID != g.LUID || h.UUID != g.UUID || h.Description != "a test's GPU" {
					t.Errorf("%s tells %+v, want %+v", ocispec.DevicesVariable, h, g)
				}
			}
			if got, set := variables[ocispec.CUDAVariable]; got != cuda || set != (cuda != "") {
				t.Errorf("%s is %q, want %q", ocispec.CUDAVariable, got, cuda)
			}
		}
	}
	for name, row := range map[string]struct {
		gpus []bed.GPU
		cuda string
	}{
		"its UUID":                 {p.gpus[:1], p.gpus[0].UUID},
		"a UUID that nobody knows": {p.gpus[1:], ""},
		"not all of the UUIDs":     {p.gpus, ""},
	} {
		t.Run(name, func(t *testing.T) { p.mustRunBoth(t, nil, check(row.gpus, row.cuda), row.gpus...) })
	}
	t.Run("a UUID that only the allocation knows", func(t *testing.T) {
		known := p.gpus[1]
		known.UUID = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f7"
		id, err := p.allocatedTo(t, nil, known)
		if err != nil {
			t.Fatal(err)
		}
		check([]bed.GPU{known}, known.UUID)(t, id)
	})
	t.Run("the container's own stay, in whatever case", func(t *testing.T) {
		own := func(s *specs.Spec) {
			s.Process.Env = append(s.Process.Env, "Cuda_Visible_Devices=0", ocispec.DevicesVariable+"=mine")
		}
		p.mustRunBoth(t, own, func(t *testing.T, id string) {
			variables := p.variables(t, id)
			if _, set := variables[ocispec.CUDAVariable]; set || variables["Cuda_Visible_Devices"] != "0" || variables[ocispec.DevicesVariable] != "mine" {
				t.Errorf("the variables are %v", variables)
			}
		}, p.gpus[0])
	})
	t.Run("off", func(t *testing.T) {
		p.WriteSettings(t, "assignmentMode: location-path\nvisibilityHints: off\n")
		p.mustRunBoth(t, nil, func(t *testing.T, id string) {
			variables := p.variables(t, id)
			for _, name := range []string{ocispec.CUDAVariable, ocispec.DevicesVariable} {
				if value, set := variables[name]; set {
					t.Errorf("%s is %q, want none", name, value)
				}
			}
		}, p.gpus[0])
	})
}

func (p *policy) testInvalid(t *testing.T) {
	p.WriteSettings(t, "assignmentMode: location-path\nruntimeFiles: {nvidia: {defaults: false}}\n")
	if err := p.TrySettings(t, "assignmentMode: sometimes\n"); err == nil || !strings.Contains(err.Error(), "config.yaml:") || !strings.Contains(err.Error(), "sometimes") {
		t.Errorf("config apply: %v", err)
	}
	p.mustRunBoth(t, nil, func(t *testing.T, id string) { p.mustHave(t, id, p.gpus[0]) }, p.gpus[0])
}
