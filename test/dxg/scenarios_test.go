//go:build e2e && linux

package dxg

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/directx-nri/directx-nri/discovery/dxg"
	"github.com/directx-nri/directx-nri/discovery/hostfiles"
	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/testutil"
)

// scenario is what the double reads: see its program.
type scenario struct{ Adapters []adapter }

type adapter struct {
	LUID                   uint64
	Description            string
	Type, Bus              uint32
	Vendor, Device, Memory uint64
	DriverStore            string
	DriverVersion          [4]uint16
	Errnos                 map[int]syscall.Errno

	pkg string // the driver's package
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

// key is what the IDs of the adapter's replicas begin with, while no other has its model and bus.
func (a adapter) key() string {
	return allocation.GPUKey(fmt.Sprintf(`PCI\VEN_%04X&DEV_%04X&SUBSYS_00000000&REV_00\%02X.00.0`, a.Vendor, a.Device, a.Bus))
}

// with returns the adapter with a change.
func (a adapter) with(change func(*adapter)) adapter {
	change(&a)
	return a
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

// TestErrnos injects every error number for every query. An adapter is unhealthy only with the one that means that it
// is gone, and nothing stays open.
func TestErrnos(t *testing.T) {
	const lastErrno = 133 // EHWPOISON
	d := start(t, scenario{})
	for _, kind := range []int{3, 6, 8, 15, 18, 31, 48} {
		for errno := syscall.Errno(1); errno <= lastErrno; errno++ {
			if errno == syscall.EINTR { // The request is repeated.
				continue
			}
			d.Set(adapters(nvidia.with(func(a *adapter) { a.Errnos = map[int]syscall.Errno{kind: errno} })))
			devices, err := dxg.Open(hostfiles.Root(d.Root)).Devices(t.Context())
			if err != nil || len(devices) != 1 || devices[0].Health.OK() == (errno == syscall.ENODEV) {
				t.Fatalf("query %d, %v (%d): %+v, %v", kind, errno, errno, devices, err)
			}
		}
	}
	d.mustBeClosed()
}

// TestProbe has programs that find GPUs which work, do not work, and do not exist.
func TestProbe(t *testing.T) {
	d := start(t, scenario{})
	broken := npu // It has no driver for Linux.
	for _, test := range []struct {
		scenario
		want []string
	}{
		{adapters(nvidia, broken, basic), []string{
			"✔ GPU         NVIDIA GeForce RTX 3080 Laptop GPU, LUID 0x00000000_0x0000C2F5: works\n✘ GPU         Intel(R) AI Boost, LUID 0x00000000_0x0000D001: ",
			"✔ library     /usr/lib/wsl/lib/libcuda.so.1\n", "- library     libnvidia-encode.so.1 is not here\n",
		}},
		{adapters(broken), []string{"none of 1 GPUs works here", "exit status 1"}},
		{adapters(basic), []string{"none of 0 GPUs works here", "exit status 1"}},
	} {
		d.Set(test.scenario)
		out := d.run(product(d, "dxctl"), "probe")
		for _, want := range test.want {
			if !strings.Contains(out, want) {
				t.Errorf("%q is not in %s", want, out)
			}
		}
		if len(test.want) > 2 && strings.Contains(out, "exit status") || strings.Contains(out, "Basic Render") {
			t.Error(out)
		}
	}
	d.mustBeClosed()
}
