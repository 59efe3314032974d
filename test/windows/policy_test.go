//go:build e2e && linux

package windows

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"directx-nri/internal/allocation"
	"directx-nri/nri/decision"
	"directx-nri/ocispec"
	"directx-nri/test/windows/bed"
)

// policy is a node whose configuration the subtests of TestPolicy change in order.
type policy struct {
	node
	pod bed.Pod

	next atomic.Int32 // the number of the next container
}

// TestPolicy checks the effect of the configuration on containers.
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
	p := &policy{node: start(t, bed.Options{Name: "policy", Inventory: inventory})}
	p.pod = p.sandbox(t, bed.Directx, p.name("pod"))
	for _, part := range []part{
		{"the class of all GPUs and the files of one", p.testClass},
		{"runtime files that the configuration adds and removes", p.testRuntimeFiles},
		{"extra mounts", p.testExtraMounts},
		{"visibility hints", p.testHints},
		{"an invalid file changes nothing", p.testInvalid},
	} {
		t.Run(part.name, part.run)
	}
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// id returns an ID for the next container.
func (p *policy) id() string {
	return fmt.Sprintf("%s-%d", p.name("app"), p.next.Add(1))
}

// allocatedTo starts a pod's container with those GPUs and a changed spec.
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
	return id, p.start(t, id, spec, change)
}

// requested starts a standalone container with a request and a changed spec.
func (p *policy) requested(t *testing.T, request string, change func(*specs.Spec)) (id string, err error) {
	t.Helper()
	id = p.id()
	spec := p.Standalone(t, id)
	spec.Process.Env = append(spec.Process.Env, "DIRECTX_VISIBLE_DEVICES="+request)
	return id, p.start(t, id, spec, change)
}

func (p *policy) start(t *testing.T, id string, spec *specs.Spec, change func(*specs.Spec)) error {
	t.Helper()
	if change != nil {
		change(spec)
	}
	return p.Run(t, bed.Directx, id, bed.JSON(t, spec))
}

// mustRunBoth starts a pod's container and a standalone one with those GPUs, and calls
// check for each.
func (p *policy) mustRunBoth(t *testing.T, change func(*specs.Spec), check func(t *testing.T, id string), gpus ...bed.GPU) {
	t.Helper()
	var locations []string
	for _, g := range gpus {
		locations = append(locations, g.Location)
	}
	// Both have ended when this returns: the configuration changes then.
	t.Run("both", func(t *testing.T) {
		for how, run := range map[string]func(*testing.T) (string, error){
			"in a pod":   func(t *testing.T) (string, error) { return p.allocatedTo(t, change, gpus...) },
			"standalone": func(t *testing.T) (string, error) { return p.requested(t, strings.Join(locations, ","), change) },
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

// mustHaveClassAndFiles fails the test unless container id has the class of all GPUs, and
// the files of gpus only.
func (p *policy) mustHaveClassAndFiles(t *testing.T, id string, gpus ...bed.GPU) {
	t.Helper()
	want := slices.Concat(filesOf(gpus...), p.defaults(gpus...))
	bed.SortMapped(want)
	mustMap(t, id, p.mustHaveClass(t, id), want)
}

// defaults returns the files that the product adds to those that NVIDIA's drivers list.
func (p *policy) defaults(gpus ...bed.GPU) []bed.Mapped {
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

// file returns a file of a GPU's driver in a container.
func file(g bed.GPU, source, destination string) bed.Mapped {
	return bed.Mapped{HostPath: g.Store + `\` + source, ContainerPath: destination, ReadOnly: true}
}

// mustHaveFiles fails the test unless container id has each of the GPUs and exactly those
// files.
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
	p.mustRunBoth(t, nil, func(t *testing.T, id string) { p.mustHaveClassAndFiles(t, id, p.gpus[1]) }, p.gpus[1])
	p.mustRunBoth(t, nil, func(t *testing.T, id string) { p.mustHaveClassAndFiles(t, id, p.gpus...) }, p.gpus...)
}

// testAssignment is part of TestDiscovery: nodes share one HCS.
func testAssignment(t *testing.T) {
	p := &policy{node: start(t, bed.Options{Name: "assignment", Settings: "assignmentMode: auto\n", HCSAnswers: true})}
	p.pod = p.sandbox(t, bed.Directx, p.name("pod"))
	for _, test := range []struct {
		name, properties string
		byClass          bool
	}{
		{"of Windows Server 2019", server2019, true},
		{"of Windows Server 2022", server2022, false},
		// Wine's build, 18362, supports the class only.
		{"that returns an error", "", true},
	} {
		t.Run("an HCS "+test.name, func(t *testing.T) {
			wine.SetHCSProperties(t, test.properties)
			p.mustRunBoth(t, nil, func(t *testing.T, id string) {
				if test.byClass {
					p.mustHaveClassAndFiles(t, id, p.gpus[1])
				} else {
					p.mustHave(t, id, p.gpus[1])
				}
			}, p.gpus[1])
		})
	}
}

// Properties of the Host Compute Service of Windows Server 2019 and 2022.
const (
	server2019 = `{"Properties":[{"SupportedSchemaVersions":[{"Major":1,"Minor":0},{"Major":2,"Minor":0},{"Major":2,"Minor":1}]}]}`
	server2022 = `{"Properties":[{"SupportedSchemaVersions":[{"Major":1,"Minor":0},{"Major":2,"Minor":0},{"Major":2,"Minor":1},` +
		`{"Major":2,"Minor":2},{"Major":2,"Minor":3},{"Major":2,"Minor":4},{"Major":2,"Minor":5}]}]}`
)

func (p *policy) testRuntimeFiles(t *testing.T) {
	p.WriteSettings(t, "assignmentMode: location-path\n")
	first := p.gpus[:1]
	p.mustRunBoth(t, nil, func(t *testing.T, id string) {
		p.mustHaveFiles(t, id, first, filesOf(first...), p.defaults(first...))
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
		kept := slices.DeleteFunc(slices.Concat(filesOf(first...), p.defaults(first...)), func(m bed.Mapped) bool {
			return strings.HasSuffix(m.HostPath, "nvapi64.dll") || strings.HasSuffix(m.HostPath, "vulkaninfo-x86.exe")
		})
		p.mustHaveFiles(t, id, first, kept, []bed.Mapped{
			file(first[0], `tools\trace.dll`, `C:\Windows\SysWOW64\trace.dll`), file(first[0], `tools\other.txt`, `C:\Windows\System32\renamed.txt`),
		})
	}, first...)
	// Settings of another vendor have no effect.
	p.WriteSettings(t, "assignmentMode: location-path\nruntimeFiles: {nvidia: {defaults: false}, amd: {remove: ['*']}}\n")
	p.mustRunBoth(t, nil, func(t *testing.T, id string) { p.mustHaveFiles(t, id, first, filesOf(first...)) }, first...)
}

// extra requests files, by annotation in a pod and otherwise by environment variable.
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
	t.Run("from the driver store and a directory", func(t *testing.T) {
		list := `[nvidia-smi.exe, {source: tools/trace.dll, directory: SysWOW64}, {source: 'C:\policy-tools\Long tool name.exe', destination: 'C:\app\tool.exe'}]`
		p.mustRunBoth(t, extra(list), func(t *testing.T, id string) {
			p.mustHaveFiles(t, id, first, filesOf(first...), []bed.Mapped{
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
			p.mustHaveFiles(t, id, first, filesOf(first...), mounts)
		}
	})
	type refusal struct{ name, list, says string }
	refused := func(name string, rows ...refusal) {
		t.Run(name, func(t *testing.T) {
			for _, row := range rows {
				t.Run(row.name, func(t *testing.T) {
					t.Parallel()
					id, err := p.allocatedTo(t, extra(row.list), first...)
					p.mustRefuse(t, id, err, row.says, "extra mounts", "pod default/"+p.pod.Name)
					p.mustLeaveNothing(t, id)
					id, err = p.requested(t, "0", extra(row.list))
					p.mustRefuse(t, id, err, row.says, "extra mounts", decision.ExtraMountsVariable)
					p.mustLeaveNothing(t, id)
				})
			}
		})
	}
	// Unit tests have all forms of paths; these are decided with the files of the node.
	refused("what is not allowed",
		refusal{"a stream", `['nvidia-smi.exe:secret']`, "alternate data stream"},
		refusal{"a device path", `['\\.\C:\policy-tools\x.exe']`, "device paths"},
		refusal{"a network path", `['\\server\share\x.exe']`, "network paths"},
		refusal{"a short name", `['C:\policy-tools\LONGTO~1.EXE']`, "8.3"},
		refusal{"a path of a drive's current directory", `['C:x.exe']`, "neither relative nor"},
		refusal{"elsewhere", `['C:\policy-secret\key.pem']`, "files from there are not allowed"},
		refusal{"the driver of another GPU", `['` + p.gpus[1].Store + `\amdhip64.dll']`, "files from there are not allowed"},
		refusal{"a directory", `[tools]`, "not a regular file"},
		refusal{"missing", `[nothing.dll]`, "no such file"},
		refusal{"a file of Windows", `[{source: nvidia-smi.exe, destination: KERNEL32.dll}]`, "a file of Windows cannot be replaced"},
		refusal{"too many", `[a.dll, b.dll, c.dll, d.dll]`, "4 files requested, 3 allowed"},
	)
	p.WriteSettings(t, fmt.Sprintf(extraSettings, "off"))
	refused("off", refusal{"off", `[nvidia-smi.exe]`, "extra mounts are disabled on this node"})
	p.WriteSettings(t, fmt.Sprintf(extraSettings, "driver-store"))
	refused("the driver store alone", refusal{"a directory that is not allowed", `['C:\policy-tools\Long tool name.exe']`, "files from there are not allowed"})

	t.Run("a refused start does not bind the allocation", func(t *testing.T) {
		id := p.id()
		token := p.Record(t, bed.Display, first[0].Replica(0))
		run := func(id, list string) error {
			spec := p.ContainerSpec(t, p.pod, id, "again")
			bed.Allocate(spec, bed.Display, token)
			return p.start(t, id, spec, extra(list))
		}
		p.mustRefuse(t, id, run(id, "[nothing.dll]"), "no such file")
		if _, bound, err := allocation.OpenStore(filepath.Dir(p.RecordFile(token))).Holder(token); bound || err != nil {
			t.Errorf("the allocation is bound: %t, %v", bound, err)
		}
		id = p.id()
		if err := run(id, "[nvidia-smi.exe]"); err != nil {
			t.Fatalf("start: %v", err)
		}
		p.mustHaveFiles(t, id, first, filesOf(first...), []bed.Mapped{file(first[0], "nvidia-smi.exe", `C:\Windows\System32\nvidia-smi.exe`)})
	})
}

// variables returns the environment of the container's first process.
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
	t.Fatalf("no process of %s was created", id)
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
					t.Errorf("%s has %+v, want %+v", ocispec.DevicesVariable, h, g)
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
		"its UUID":             {p.gpus[:1], p.gpus[0].UUID},
		"an unknown UUID":      {p.gpus[1:], ""},
		"not all of the UUIDs": {p.gpus, ""},
	} {
		t.Run(name, func(t *testing.T) { p.mustRunBoth(t, nil, check(row.gpus, row.cuda), row.gpus...) })
	}
	t.Run("a UUID of the allocation only", func(t *testing.T) {
		known := p.gpus[1]
		known.UUID = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f7"
		id, err := p.allocatedTo(t, nil, known)
		if err != nil {
			t.Fatal(err)
		}
		check([]bed.GPU{known}, known.UUID)(t, id)
	})
	t.Run("the container's own variables win, in any case", func(t *testing.T) {
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
	if err := p.TrySettings(t, "assignmentMode: sometimes\n"); err == nil || !strings.Contains(err.Error(), "config.yaml:") || !strings.Contains(err.Error(), "assignmentMode") {
		t.Errorf("config apply: %v", err)
	}
	p.mustRunBoth(t, nil, func(t *testing.T, id string) { p.mustHave(t, id, p.gpus[0]) }, p.gpus[0])
}
