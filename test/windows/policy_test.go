//go:build e2e && windows

package windows

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/windows"

	"github.com/directx-nri/directx-nri/decision"
	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/ocispec/gpuedits"
	"github.com/directx-nri/directx-nri/test/windows/bed"
)

// policy is a node whose configuration the subtests of TestPolicy change in order.
type policy struct {
	node

	next atomic.Int32 // the number of the next container
}

func newPolicy(t *testing.T, options bed.Options) *policy {
	t.Helper()
	return &policy{node: start(t, options)}
}

// TestPolicy checks the effect of the configuration on containers.
func TestPolicy(t *testing.T) {
	t.Parallel()
	gpus := machine.NewGPUs("policy")
	first := &gpus[0]
	first.UUID = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"
	for _, unlisted := range []string{"nvidia-smi.exe", "vulkaninfo-x64.exe", "vulkaninfo-x86.exe", `tools\trace.dll`, `tools\other.txt`} {
		testutil.WriteFile(t, first.DriverStorePath+`\`+unlisted, unlisted, 0o600)
	}
	p := newPolicy(t, bed.Options{Name: "policy", GPUs: gpus})
	for _, part := range []part{
		{"the class of all GPUs and the files of one", p.testClass},
		{"extra mounts", p.testExtraMounts},
		{"visibility hints", p.testHints},
	} {
		t.Run(part.name, part.run)
	}
}

// id returns an ID for the next container.
func (p *policy) id() string {
	return fmt.Sprintf("%s-%d", p.Name("app"), p.next.Add(1))
}

// extra is a request for files, by annotation in a pod and otherwise by environment variable, "" for none.
type extra string

// allocatedTo starts a container of a new pod with those GPUs.
func (p *policy) allocatedTo(t *testing.T, files extra, gpus ...bed.GPU) (id string, err error) {
	t.Helper()
	var replicas []allocation.Replica
	for i, g := range gpus {
		replicas = append(replicas, g.Replica(i))
	}
	return p.allocatedBy(t, p.Record(t, replicas...), files)
}

// allocatedBy starts a container of a new pod with an allocation record.
func (p *policy) allocatedBy(t *testing.T, record allocation.ID, files extra) (id string, err error) {
	t.Helper()
	annotations := map[string]string{}
	if files != "" {
		annotations[decision.ExtraMountsAnnotation] = string(files)
	}
	return p.StartContainer(t, p.RunPod(t, p.id(), bed.Annotated(annotations)), p.NewAllocated("app", record))
}

// requested starts a standalone container with a request.
func (p *policy) requested(t *testing.T, request string, files extra) (id string, err error) {
	t.Helper()
	id = p.id()
	flags := bed.Visible(request)
	if files != "" {
		flags = append(flags, "--env", decision.ExtraMountsVariable+"="+string(files))
	}
	return id, p.RunImage(t, id, flags...)
}

// mustRunBoth starts a pod's container and a standalone one with those GPUs, and calls
// check for each.
func (p *policy) mustRunBoth(t *testing.T, files extra, check func(t *testing.T, id string), gpus ...bed.GPU) {
	t.Helper()
	var locations []string
	for _, g := range gpus {
		locations = append(locations, g.LocationPath)
	}
	// Both have ended when this returns: the configuration changes then.
	t.Run("both", func(t *testing.T) {
		for how, run := range map[string]func(*testing.T) (string, error){
			"in a pod":   func(t *testing.T) (string, error) { return p.allocatedTo(t, files, gpus...) },
			"standalone": func(t *testing.T) (string, error) { return p.requested(t, strings.Join(locations, ","), files) },
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

// defaults returns the files that the product adds to those that NVIDIA's driver lists.
func (p *policy) defaults() []bed.Mapped {
	g := p.GPUs[0]
	return []bed.Mapped{g.File("nvidia-smi.exe", `System32\nvidia-smi.exe`),
		g.File("vulkaninfo-x64.exe", `System32\vulkaninfo.exe`), g.File("vulkaninfo-x86.exe", `SysWOW64\vulkaninfo.exe`)}
}

func (p *policy) testClass(t *testing.T) {
	p.WriteSettings(t, "assignmentMode: class-guid\n")
	p.mustRunBoth(t, "", func(t *testing.T, id string) { p.MustHaveClass(t, id, bed.FilesOf(p.GPUs[1])) }, p.GPUs[1])
	p.mustRunBoth(t, "", func(t *testing.T, id string) { p.MustHaveClass(t, id, bed.FilesOf(p.GPUs...), p.defaults()) }, p.GPUs...)
}

// autoSettings are the product's defaults.
const autoSettings = "assignmentMode: auto\ndriverFiles: auto\n"

// testBuilds is part of TestDiscovery: nodes share one Windows.
func testBuilds(t *testing.T) {
	p := newPolicy(t, bed.Options{Name: "builds", Settings: autoSettings})
	first, other := p.GPUs[0], p.GPUs[1]
	testutil.WriteFile(t, first.DriverStorePath+`\nvidia-smi.exe`, "", 0o600)
	smi := []bed.Mapped{first.File("nvidia-smi.exe", `System32\nvidia-smi.exe`)}
	t.Run("Windows Server 2022", func(t *testing.T) {
		p.mustRunBoth(t, "", func(t *testing.T, id string) { p.MustHaveFiles(t, id, p.GPUs[:1], bed.FilesOf(first), smi) }, first)
	})
	t.Run("Windows Server 2019", func(t *testing.T) {
		machine.SetBuild(t, 17763)
		p.mustRunBoth(t, "", func(t *testing.T, id string) { p.MustHaveClass(t, id, bed.FilesOf(other)) }, other)
	})
	t.Run("Windows Server 2025", func(t *testing.T) {
		machine.SetBuild(t, 26100)
		machine.SetOwnFiles(t, `System32\nvcuda.dll`) // The second driver does not have it.
		p.mustRunBoth(t, "", func(t *testing.T, id string) { p.MustHaveFiles(t, id, p.GPUs) }, first, other)

		p.WriteSettings(t, "driverFiles: mount\n")
		for how, run := range map[string]func() (string, error){
			"in a pod":   func() (string, error) { return p.allocatedTo(t, "", first) },
			"standalone": func() (string, error) { return p.requested(t, "0", "") },
		} {
			id, err := run()
			// On Windows the text is "The parameter is incorrect."
			if err == nil || !strings.Contains(err.Error(), "hcs::CreateComputeSystem "+id+": "+windows.ERROR_INVALID_PARAMETER.Error()) {
				t.Errorf("%s: %v, want the error of HCS", how, err)
			}
			p.MustHaveFiles(t, id, p.GPUs[:1], bed.FilesOf(first), smi)
			p.MustLeaveNothing(t, id)
		}
		p.mustRunBoth(t, "", func(t *testing.T, id string) { p.MustHave(t, id, other) }, other)

		p.WriteSettings(t, autoSettings+"runtimeFiles: {nvidia: {add: [nvidia-smi.exe]}}\n")
		p.mustRunBoth(t, "", func(t *testing.T, id string) { p.MustHaveFiles(t, id, p.GPUs[:1], smi) }, first)
	})
}

const extraSettings = `assignmentMode: location-path
runtimeFiles: {nvidia: {defaults: false}}
extraMounts:
  sources: %s
  hostDirectories: ['%s']
  destinations: ['C:\Windows\System32', 'C:\Windows\SysWOW64', 'C:\app']
  max: 3
`

func (p *policy) testExtraMounts(t *testing.T) {
	allow := func(sources string) { p.WriteSettings(t, fmt.Sprintf(extraSettings, sources, p.Path("tools"))) }
	tool := p.Path("tools", "Long tool name.exe")
	testutil.NoError(t, os.Mkdir(p.Path("tools"), 0o700))
	p.File(t, `tools\Long tool name.exe`, "tool")
	secret := p.File(t, "secret.pem", "key")
	first := p.GPUs[:1]
	smi := []bed.Mapped{first[0].File("nvidia-smi.exe", `System32\nvidia-smi.exe`)}

	allow("host-directories")
	t.Run("from the driver store and a directory", func(t *testing.T) {
		list := fmt.Sprintf(`["nvidia-smi.exe", {"source": "tools/trace.dll", "directory": "SysWOW64"}, {"source": %q, "destination": "C:\\app\\tool.exe"}]`, tool)
		p.mustRunBoth(t, extra(list), func(t *testing.T, id string) {
			p.MustHaveFiles(t, id, first, bed.FilesOf(first...), smi, []bed.Mapped{
				first[0].File(`tools\trace.dll`, `SysWOW64\trace.dll`), {HostPath: tool, ContainerPath: `C:\app\tool.exe`, ReadOnly: true},
			})
		}, first...)
	})
	// Unit tests have all forms of paths; these are decided with the files of the node.
	refused := func(rows map[string]string) {
		t.Helper()
		t.Run("refused", func(t *testing.T) {
			for list, says := range rows {
				t.Run(says, func(t *testing.T) {
					t.Parallel()
					id, err := p.allocatedTo(t, extra(list), first...)
					p.MustRefuse(t, id, err, says, "extra mounts", "pod default/")
					id, err = p.requested(t, "0", extra(list))
					p.MustRefuse(t, id, err, says, "extra mounts", decision.ExtraMountsVariable)
				})
			}
		})
	}
	refused(map[string]string{
		secret: "files of this directory are not allowed",
		p.GPUs[1].DriverStorePath + `\amdhip64.dll`: "files of this directory are not allowed",
		`nvidia-smi.exe:secret`:                     "alternate data stream",
		`tools`:                                     "not a regular file",
		`nothing.dll`:                               "no such file",
		"a.dll\nb.dll\nc.dll\nd.dll":                "4 files requested, 3 allowed",
		p.Path("tools", "LONGTO~1.EXE"):             "8.3",
		`[{"source": "nvidia-smi.exe", "destination": "KERNEL32.dll"}]`: "a file of Windows cannot be replaced",
	})
	allow("none")
	refused(map[string]string{`nvidia-smi.exe`: "extra mounts are disabled on this node"})
	allow("driver-store")
	refused(map[string]string{tool: "files of this directory are not allowed"})

	t.Run("a refused start does not bind the allocation", func(t *testing.T) {
		record := p.Record(t, first[0].Replica(0))
		id, err := p.allocatedBy(t, record, "nothing.dll")
		p.MustRefuse(t, id, err, "no such file")
		if _, err := allocation.OpenStore(filepath.Dir(p.RecordFile(record))).GetFor(record, allocation.Holder{}); err != nil {
			t.Errorf("the allocation is bound: %v", err)
		}
		id, err = p.allocatedBy(t, record, "nvidia-smi.exe")
		if err != nil {
			t.Fatalf("start: %v", err)
		}
		p.MustHaveFiles(t, id, first, bed.FilesOf(first...), smi)
	})
}

func (p *policy) testHints(t *testing.T) {
	p.WriteSettings(t, "assignmentMode: location-path\n")
	p.mustRunBoth(t, "", func(t *testing.T, id string) {
		variables, want := p.Environment(t, id), p.GPUs[0]
		hints := bed.Decode[[]gpuedits.Hint](t, variables[gpuedits.DevicesVariable])
		if len(hints) != 1 {
			t.Fatalf("the hints are %+v, want one GPU", hints)
		}
		h := hints[0]
		same := h.LocationPath == want.LocationPath && h.LUID == want.LUID.String() && h.UUID == want.UUID && h.Description == want.Description
		if !same || variables[gpuedits.CUDAVariable] != want.UUID {
			t.Errorf("the variables are %v, want %+v", variables, want)
		}
	}, p.GPUs[0])
}
