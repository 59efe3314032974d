//go:build e2e && linux

package dxg

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/discovery/dxg"
	"github.com/directx-nri/directx-nri/discovery/hostfiles"
	"github.com/directx-nri/directx-nri/internal/testutil"
)

// scenario is what the double reads: see its program.
type scenario struct {
	Noise     bool
	EnumErrno syscall.Errno
	Count     *uint32
	Adapters  []adapter
}

type adapter struct {
	LUID                   uint64
	Description            string
	Type, Bus              uint32
	Vendor, Device, Memory uint64
	DriverStore            string
	DriverVersion          [4]uint16
	Gone                   bool
	Errno                  syscall.Errno
	Answers                map[int]answer

	pkg string // the driver's package
}

// answer replaces the answer to a type of query; the zero value is the usual answer.
type answer struct {
	Errno syscall.Errno
	Bytes []byte
	Short int
}

// Bits of adapters' types.
const (
	render      = 1 << 0
	software    = 1 << 2
	discrete    = 1 << 4
	integrated  = 1 << 5
	computeOnly = 1 << 11
)

// The adapters.
var (
	nvidia   = newAdapter(0xC2F5, "NVIDIA GeForce RTX 3080 Laptop GPU", render|discrete, 0x10DE, 0x249C, 16<<30, "nvmii.inf_amd64_3c1b7d2e5f60a1b2")
	amd      = newAdapter(0xA001, "AMD Radeon RX 6800 XT", render|discrete, 0x1002, 0x73BF, 16<<30, "u0388217.inf_amd64_5d2c4b6a79808f1e")
	intel    = newAdapter(0x1_0000_B001, "Intel(R) Iris(R) Xe Graphics", render|integrated, 0x8086, 0x9A49, 128<<20, "iigd_dch.inf_amd64_9f8e7d6c5b4a3021")
	intelArc = newAdapter(0xB002, "Intel(R) Arc(TM) A370M Graphics", render|discrete, 0x8086, 0x5693, 4<<30, "iigd_dch_d.inf_amd64_00112233445566aa")
	npu      = newAdapter(0xD001, "Intel(R) AI Boost", computeOnly, 0x8086, 0x7D1D, 0, "npu.inf_amd64_77aa88bb99cc00dd")
	basic    = newAdapter(0x8001, "Microsoft Basic Render Driver", render|software, 0x1414, 0x8C, 0, "")
	laptop   = []adapter{intel, intelArc, nvidia, basic}
)

func newAdapter(luid uint64, description string, kind uint32, vendor, device, memory uint64, pkg string) adapter {
	a := adapter{LUID: luid, Description: description, Type: kind, Bus: uint32(luid & 0xF), Vendor: vendor, Device: device, Memory: memory, DriverVersion: [4]uint16{31, 0, 15, 5222}, pkg: pkg}
	if pkg != "" {
		a.DriverStore = `C:\Windows\System32\HostDriverStore\FileRepository\` + pkg
	}
	return a
}

func adapters(list ...adapter) scenario { return scenario{Adapters: list} }

// with returns the adapter with a change.
func (a adapter) with(change func(*adapter)) adapter {
	change(&a)
	return a
}

// Types of queries.
const (
	registryInfo    = 8
	adapterType     = 15
	deviceIDs       = 31
	registry        = 48
	registryOverrun = 536 // offset of the size in the answer to registry
)

// hostile makes sizes and strings wrong.
func hostile(a *adapter) {
	a.Answers = map[int]answer{
		registryInfo: {Bytes: bytes.Repeat([]byte{0x41, 0xD8}, 1040)}, // Half of a character and no end.
		deviceIDs:    {Bytes: bytes.Repeat([]byte{0xFF}, 28)},
		adapterType:  {Bytes: []byte{0xFF, 0xFF, 0xFF, 0xFF}},
		registry:     {Bytes: append(make([]byte, registryOverrun), 0xFE, 0xFF, 0xFF, 0xFF, 1, 0, 0, 0)},
	}
}

// short makes every answer one byte long.
func short(a *adapter) {
	a.Answers = map[int]answer{}
	for kind := range 80 {
		a.Answers[kind] = answer{Short: 1}
	}
}

// scenarios are what TestScenarios lists. Their names are in the golden file.
var scenarios = []struct {
	name string
	scenario
}{
	{"no GPU", scenario{}},
	{"NVIDIA", adapters(nvidia)},
	{"AMD", adapters(amd)},
	{"two of Intel, one of NVIDIA", adapters(laptop...)},
	{"compute-only", adapters(npu.with(func(a *adapter) { a.DriverStore = intelArc.DriverStore }))},
	{"NPU without a driver for Linux", adapters(npu, nvidia)},
	{"software renderer only", adapters(basic)},
	{"one vanishes after enumeration", adapters(nvidia, amd.with(func(a *adapter) { a.Gone = true }))},
	{"queries fail with EIO", adapters(nvidia, amd.with(func(a *adapter) { a.Errno = syscall.EIO }))},
	{"only the device IDs are known", adapters(amd.with(func(a *adapter) { a.Errno, a.Answers = syscall.EINVAL, map[int]answer{deviceIDs: {}} }))},
	{"enumeration fails with EIO", scenario{EnumErrno: syscall.EIO}},
	{"answers of one byte", adapters(nvidia.with(short))},
	{"hostile answers", adapters(nvidia.with(hostile), amd)},
	{"hostile count", scenario{Count: ptr(uint32(math.MaxUint32)), Adapters: []adapter{nvidia}}},
}

func ptr[T any](v T) *T { return &v }

// TestLayout runs the double's own tests.
func TestLayout(t *testing.T) {
	if out, err := exec.Command("go", "-C", "double", "test", "./...").CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestScenarios compares what dxctl lists with the golden file.
func TestScenarios(t *testing.T) {
	d := start(t, scenario{})
	var got strings.Builder
	for _, s := range scenarios {
		d.Set(s.scenario)
		fmt.Fprintf(&got, "# %s\n%s\n", s.name, d.devices("-o", "wide"))
		if strings.HasPrefix(s.name, "two") {
			fmt.Fprintf(&got, "%s\n", d.devices("0"))
		}
		d.mustBeClosed()
	}
	// Columns are as wide as their longest value, and the hostile one is.
	text := regexp.MustCompile(`  +`).ReplaceAllString(got.String(), "  ")
	testutil.Golden(t, filepath.Join("testdata", "devices.txt"), text)
}

// devices returns what dxctl devices prints.
func (d *double) devices(args ...string) string {
	d.Helper()
	return d.run(product(d, "dxctl"), append([]string{"devices", "--state-dir", d.TempDir()}, args...)...)
}

// TestErrnos injects every error number for every query. An adapter is unhealthy only with the
// one that means that it is gone, or if it no longer answers its type.
func TestErrnos(t *testing.T) {
	const lastErrno = 133 // EHWPOISON
	d := start(t, scenario{})
	for _, kind := range []int{3, 6, registryInfo, adapterType, 18, deviceIDs, registry} {
		for errno := syscall.Errno(1); errno <= lastErrno; errno++ {
			if errno == syscall.EINTR { // The request is repeated.
				continue
			}
			refusing := nvidia.with(func(a *adapter) { a.Answers = map[int]answer{kind: {Errno: errno}} })
			known := d.source()
			for _, step := range []struct {
				name    string
				source  *dxg.Source
				adapter adapter
				healthy bool
			}{
				{"at first", d.source(), refusing, errno != unix.ENODEV},
				{"before", known, nvidia, true},
				{"later", known, refusing, kind != adapterType}, // It is asked for the type alone.
				{"after", known, nvidia, true},
			} {
				d.Set(adapters(step.adapter))
				devices, err := step.source.Devices(t.Context())
				if err != nil || len(devices) != 1 || devices[0].Health.OK() != step.healthy || step.healthy && devices[0].Kind() != discovery.KindDisplay {
					t.Fatalf("query %d, %v (%d), %s: %+v, %v", kind, errno, errno, step.name, devices, err)
				}
			}
		}
	}
	d.mustBeClosed()
}

func (d *double) source() *dxg.Source {
	return dxg.Open(hostfiles.Root(d.Root), testutil.Quiet())
}

// TestRounds lists GPUs often and leaves no descriptor, handle or other file open.
func TestRounds(t *testing.T) {
	d := start(t, adapters(laptop...))
	source := d.source()
	before := descriptors(t)
	for round := range 10_000 {
		devices, err := source.Devices(t.Context())
		if err != nil || len(devices) != 4 {
			t.Fatalf("round %d: %d devices, %v", round, len(devices), err)
		}
	}
	d.mustBeClosed()
	if after := descriptors(t); after != before {
		t.Errorf("%d descriptors are open, %d were before", after, before)
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	open, err := os.ReadDir("/proc/self/fd")
	testutil.NoError(t, err)
	return len(open)
}

// TestRandomAnswers lists GPUs while answers, counts and errors are random.
func TestRandomAnswers(t *testing.T) {
	d := start(t, scenario{Noise: true, Adapters: []adapter{intel, nvidia, npu}})
	listed := 0
	for range 3000 {
		begin := time.Now()
		if devices, err := d.source().Devices(t.Context()); err == nil {
			listed += len(devices)
		}
		if took := time.Since(begin); took > 10*time.Second {
			t.Fatalf("a list took %v", took)
		}
	}
	if listed == 0 {
		t.Error("no list had a device: the noise is too loud")
	}
	d.mustBeOpen("files 0, handles 0") // The driver itself lied about what it opened.
}

// many is a scenario of as many adapters as the driver has at most.
func many() scenario {
	s := scenario{}
	for i := range 64 {
		s.Adapters = append(s.Adapters, nvidia.with(func(a *adapter) { a.LUID += uint64(i) }))
	}
	return s
}

// BenchmarkDevices lists 64 adapters for the first time.
func BenchmarkDevices(b *testing.B) {
	d := start(b, many())
	for b.Loop() {
		if devices, err := d.source().Devices(b.Context()); err != nil || len(devices) != 64 {
			b.Fatal(len(devices), err)
		}
	}
}
