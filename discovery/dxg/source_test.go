//go:build linux

package dxg

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/pci"
	"github.com/directx-nri/directx-nri/internal/testutil"
)

func TestDeviceHasAllProperties(t *testing.T) {
	t.Parallel()
	f := &fakeDriver{adapters: []fakeAdapter{nvidia().with(queryAddress, le(1, 0, 0))}}
	s, _ := newSource(t, f)
	got, err := s.Devices(t.Context())
	one, zero := uint32(1), uint32(0)
	same := func(path string) discovery.Library { return discovery.Library{Source: path, Destination: path} }
	want := []discovery.Device{{
		InstanceID:  `PCI\VEN_10DE&DEV_2684&SUBSYS_16F11043&REV_A1\01.00.0`,
		Description: "NVIDIA GeForce RTX 4090", VendorID: pci.VendorNVIDIA,
		LUID: 0xC2F5, DriverVersion: "32.0.15.6094",
		DriverStorePath: wslDir + "/drivers/nv_dispi.inf_amd64_1f2e", DedicatedMemory: 8 << 30,
		BusNumber: &one, Address: &zero, SupportsDisplay: true, SupportsCompute: true,
		DeviceNodes: []discovery.DeviceNode{{Path: "/dev/dxg", ContainerPath: "/dev/dxg"}},
		Libraries: []discovery.Library{
			same(wslDir + "/drivers/nv_dispi.inf_amd64_1f2e"),
			same(wslDir + "/lib/libcuda.so.1"), same(wslDir + "/lib/libd3d12.so"), same(wslDir + "/lib/libdxcore.so"), same(wslDir + "/lib/nvidia-smi"),
			{Source: wslDir + "/lib/nvidia-smi", Destination: "/usr/bin/nvidia-smi"},
		},
		LibraryPath: []string{wslDir + "/lib"},
	}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
	f.queries = 0
	if again, err := s.Devices(t.Context()); err != nil || !cmp.Equal(want, again) || f.queries != 1 {
		t.Errorf("again, with %d queries: %+v, %v", f.queries, again, err)
	}
}

// TestScenarios checks what differs from an adapter that answers everything. A summary
// is kind, instance ID, description, health and notes.
func TestScenarios(t *testing.T) {
	t.Parallel()
	const (
		nv      = `display PCI\VEN_10DE&DEV_2684&SUBSYS_16F11043&REV_A1\0 NVIDIA GeForce RTX 4090 healthy`
		iris    = `display PCI\VEN_8086&DEV_46A6&SUBSYS_16F11043&REV_A1\0 Intel(R) Iris(R) Xe Graphics healthy`
		twins   = `display PCI\VEN_10DE&DEV_2684&SUBSYS_16F11043&REV_A1\0x00000000_0x0000C2F5 NVIDIA GeForce RTX 4090 healthy`
		blank   = ` DXG\0x00000000_0x0000C2F5  the driver does not answer: `
		untyped = " its type is unknown: a display GPU is assumed"
		noStore = " its driver store path is unknown: "
		all     = "; containers get all of /usr/lib/wsl/drivers"
		noNPU   = ` PCI\VEN_8086&DEV_643E&SUBSYS_16F11043&REV_A1\0 NPU `
	)
	npu := func(pkg string) *fakeDriver {
		return &fakeDriver{adapters: []fakeAdapter{gpu(1, 0x8086, 0x643E, typeComputeOnly, "NPU", pkg)}}
	}
	overflow := utf16le(`C:\Windows\System32\DriverStore\FileRepository\nv_dispi.inf_amd64_1f2e\` + strings.Repeat("x", 2000))
	twin := func(luid uint32) fakeAdapter { a := nvidia(); a.luid = luid; return a }
	for name, test := range map[string]struct {
		driver *fakeDriver
		want   []string
	}{
		"hybrid laptop": {&fakeDriver{adapters: []fakeAdapter{intel(), nvidia()}}, []string{nv, iris}},
		"by memory":     {&fakeDriver{adapters: []fakeAdapter{intel().with(queryType, le(typeRender)), nvidia().with(querySegmentSize, le(0, 4))}}, []string{nv, iris}},
		"by vendor":     {&fakeDriver{adapters: []fakeAdapter{intel().with(queryType, le(typeRender)).without(querySegmentSize), nvidia().without(querySegmentSize)}}, []string{nv, iris}},
		"long registry": {&fakeDriver{adapters: []fakeAdapter{nvidia().with(queryRegistry, overflow)}},
			[]string{nv + noStore + "the driver returns status 1 and 4144 bytes in a buffer of 4096" + all}},
		"no package in the path": {&fakeDriver{adapters: []fakeAdapter{nvidia().with(queryRegistry, utf16le(`C:\Windows`))}},
			[]string{nv + " its driver store path has no package" + all}},
		"compute-only":    {npu("iigd_dch.inf_amd64_0a1b"), []string{"compute" + noNPU + "healthy"}},
		"NPU":             {npu("npu.inf_amd64_1"), []string{noNPU + "/usr/lib/wsl/drivers/npu.inf_amd64_1 has no shared library, so it has no driver for Linux"}},
		"NPU, no package": {npu("x"), []string{noNPU + "/usr/lib/wsl/drivers/x does not exist: whether it has a driver for Linux is unknown"}},
		"software": {&fakeDriver{adapters: []fakeAdapter{gpu(1, 0x1414, 0x8C, typeRender|typeSoftware, "Microsoft Basic Render Driver", "x")}},
			[]string{` PCI\VEN_1414&DEV_008C&SUBSYS_16F11043&REV_A1\0 Microsoft Basic Render Driver healthy`}},
		"software untyped": {&fakeDriver{adapters: []fakeAdapter{gpu(1, 0x1414, 0x8C, 0, "", "x").without(queryType)}},
			[]string{` PCI\VEN_1414&DEV_008C&SUBSYS_16F11043&REV_A1\0  healthy` + untyped}},
		"ACPI": {&fakeDriver{adapters: []fakeAdapter{gpu(1, qualcommACPI, 0x36334430, typeRender, "Adreno", "x")}},
			[]string{`display ACPI\VEN_4D4F4351&DEV_36334430\0 Adreno the VM cannot use the host's driver: /usr/lib/wsl/drivers/x does not exist`}},
		"old host": {&fakeDriver{adapters: []fakeAdapter{nvidia().with(queryType, le(typeParavirtualized)).with(queryAddress, nil)}},
			[]string{nv + untyped}},
		"old host, nothing": {&fakeDriver{adapters: []fakeAdapter{{luid: 0xC2F5, zeros: true}}}, []string{blank + "its answers are empty"}},
		"LUID only":         {&fakeDriver{adapters: []fakeAdapter{{luid: 0xC2F5}}}, []string{blank + "invalid argument (EINVAL)"}},
		"host bridge":       {&fakeDriver{adapters: []fakeAdapter{nvidia().with(queryAddress, le(0, 0, 0))}}, []string{nv}},
		"hostile address":   {&fakeDriver{adapters: []fakeAdapter{nvidia().with(queryAddress, le(1, 0x123456, 0))}}, []string{nv}},
		"equal addresses": {&fakeDriver{adapters: []fakeAdapter{twin(0xC2F5).with(queryAddress, le(1, 0, 0)), twin(2).with(queryAddress, le(1, 0, 0))}},
			[]string{strings.Replace(twins, "0000C2F5", "00000002", 1), twins}},
		"twice": {&fakeDriver{adapters: []fakeAdapter{nvidia(), nvidia()}}, []string{nv}},
		"control character": {&fakeDriver{adapters: []fakeAdapter{nvidia().with(queryRegistryInfo, utf16le("NVIDIA\n\x1b[31m GPU"))}},
			[]string{strings.Replace(nv, "NVIDIA GeForce RTX 4090", "NVIDIA [31m GPU", 1)}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, _ := newSource(t, test.driver)
			devices, err := s.Devices(t.Context())
			var got []string
			for _, d := range devices {
				got = append(got, strings.Join(append([]string{string(d.Kind()), d.InstanceID, d.Description, d.Health.String()}, d.Notes...), " "))
			}
			if diff := cmp.Diff(test.want, got); err != nil || diff != "" {
				t.Errorf("%v\n%s", err, diff)
			}
		})
	}
}

func TestDriverErrors(t *testing.T) {
	t.Parallel()
	for want, f := range map[string]*fakeDriver{
		"no GPU: /dev/dxg does not exist":               {openErr: unix.ENOENT},
		"the driver reports 2147483648, more than 1024": {count: 1 << 31},
	} {
		s, _ := newSource(t, f)
		_, err := s.Devices(t.Context())
		testutil.CheckError(t, "devices", err, want)
	}
}

// TestFailingGPUsKeepTheirIdentity checks that GPUs keep their properties and identity while they fail.
func TestFailingGPUsKeepTheirIdentity(t *testing.T) {
	t.Parallel()
	f := &fakeDriver{adapters: []fakeAdapter{nvidia().with(queryAddress, le(1, 0, 0)), intel()}}
	s, _ := newSource(t, f)
	good, err := s.Devices(t.Context())
	if err != nil || len(good) != 2 {
		t.Fatal(good, err)
	}
	check := func(name string, reasons ...string) {
		want := []discovery.Device{}
		for i, reason := range reasons {
			d := good[i]
			d.Health = discovery.Health{Reason: reason}
			want = append(want, d)
		}
		got, err := s.Devices(t.Context())
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%s: %v\n%s", name, err, diff)
		}
	}
	f.adapters[0].failure = unix.EINVAL
	check("one refuses", "the driver does not answer: invalid argument (EINVAL)", "")
	f.adapters[0].failure = unix.EIO
	check("one fails", "the driver does not answer: input/output error (EIO)", "")
	f.openErr = unix.ENODEV
	check("all fail", "the driver does not answer: no such device", "the driver does not answer: no such device")
	f.openErr, f.adapters[0].failure = nil, nil
	f.adapters[0].without(queryAddress)
	check("they answer again", "", "")
	f.adapters = f.adapters[:1]
	check("one vanishes", "")
}

// TestIdentity checks the IDs of adapters of one model that come and go.
func TestIdentity(t *testing.T) {
	t.Parallel()
	f := &fakeDriver{}
	s, _ := newSource(t, f)
	unit := func(luid uint32, failure error) fakeAdapter {
		a := nvidia()
		a.luid, a.failure = luid, failure
		return a
	}
	for _, step := range []struct {
		name     string
		adapters []fakeAdapter
		want     string
	}{
		{"the only one", []fakeAdapter{unit(2, nil)}, "0"},
		{"a second one", []fakeAdapter{unit(1, nil), unit(2, nil)}, "0x00000000_0x00000001 0"},
		{"one fails", []fakeAdapter{unit(1, nil), unit(2, unix.EIO)}, "0x00000000_0x00000001 0"},
		{"one is left", []fakeAdapter{unit(2, nil)}, "0"},
		{"it returns while it is listed", []fakeAdapter{unit(2, unix.EIO), unit(3, nil)}, "0x00000000_0x00000002 0"},
		{"it has returned", []fakeAdapter{unit(3, nil)}, "0"},
		{"the VM restarts", []fakeAdapter{unit(4, nil)}, "0"},
	} {
		f.adapters = step.adapters
		devices, err := s.Devices(t.Context())
		var got []string
		for _, d := range devices {
			got = append(got, d.InstanceID[strings.LastIndex(d.InstanceID, `\`)+1:])
		}
		if strings.Join(got, " ") != step.want || err != nil {
			t.Errorf("%s: %q, want %s; %v", step.name, got, step.want, err)
		}
	}
}

// TestIncompleteVM checks VMs with a part of the files only, from none to all.
func TestIncompleteVM(t *testing.T) {
	t.Parallel()
	const nvidiaPackage, intelPackage = driversDir + "/nv_dispi.inf_amd64_1f2e", driversDir + "/iigd_dch.inf_amd64_0a1b"
	const noDriver, noLibraries = "the VM has no user-mode driver: " + driversDir, "the VM has no libraries: " + libDir + " does not exist"
	const noDXCore, noCUDA = "the VM has no " + libDir + "/libdxcore.so", libDir + "/libcuda.so.1"
	for name, test := range map[string]struct {
		change        string // a command in the root
		nvidia, intel string // health and notes
	}{
		"complete":       {"true", "healthy", "healthy"},
		"no files":       {"rm -r usr", noDriver + " does not exist; " + noLibraries, noDriver + " does not exist; " + noLibraries},
		"empty drivers":  {"rm -r usr/lib/wsl/drivers/*", noDriver + " is empty", noDriver + " is empty"},
		"no lib":         {"rm -r usr/lib/wsl/lib", noLibraries, noLibraries},
		"empty lib":      {"rm usr/lib/wsl/lib/*", noDXCore + " and no " + noCUDA, noDXCore},
		"no libdxcore":   {"rm usr/lib/wsl/lib/libdxcore.so", noDXCore, noDXCore},
		"no libcuda":     {"rm usr/lib/wsl/lib/libcuda.so.1", "the VM has no " + noCUDA, "healthy"},
		"no Direct3D 12": {"rm usr/lib/wsl/lib/libd3d12.so", "healthy [the VM has no " + libDir + "/libd3d12.so", "healthy [the VM has no " + libDir + "/libd3d12.so"},
		"another driver": {"mv ." + nvidiaPackage + " ." + driversDir + "/nv_dispi.inf_amd64_2a3b",
			"the VM cannot use the host's driver: " + nvidiaPackage + " does not exist", "healthy"},
		"empty packages": {"rm -r ." + driversDir + "/*/*", nvidiaPackage + " has no shared library", intelPackage + " has no shared library"},
		"unreadable": {"chmod 600 usr/lib/wsl/lib/libcuda.so.1",
			"healthy [" + noCUDA + " has the mode 0600, so only some users can use it in containers]", "healthy"},
		"device of root":          {"mkdir dev && touch dev/dxg && chmod 600 dev/dxg", "healthy [/dev/dxg has the mode 0600", "healthy [/dev/dxg has the mode 0600"},
		"links of public scripts": {"cd usr/lib/wsl/lib && mv libcuda.so.1 libcuda.so && ln -s /usr/lib/wsl/lib/libcuda.so libcuda.so.1", "healthy", "healthy"},
		"a package of links":      {"mkdir opt && mv ." + intelPackage + "/* opt && ln -s /opt/B1 ." + intelPackage + "/B1", "healthy", "healthy"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, root := newSource(t, &fakeDriver{adapters: []fakeAdapter{nvidia(), intel()}})
			command := exec.Command("sh", "-ec", test.change)
			command.Dir = root
			if out, err := command.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			devices, err := s.Devices(t.Context())
			if err != nil || len(devices) != 2 {
				t.Fatal(devices, err)
			}
			for _, d := range devices {
				got, want := d.Health.String(), test.intel
				if d.VendorID == pci.VendorNVIDIA {
					want = test.nvidia
				}
				if len(d.Notes) > 0 {
					got += fmt.Sprint(" ", d.Notes)
				}
				if !strings.HasPrefix(got, want) || want == "healthy" && got != want {
					t.Errorf("%s: %q, want %q", d.Description, got, want)
				}
			}
		})
	}
}

// TestInstalledSMI checks a VM of Hyper-V, in which a distribution's package has installed nvidia-smi.
func TestInstalledSMI(t *testing.T) {
	t.Parallel()
	s, root := newSource(t, &fakeDriver{adapters: []fakeAdapter{nvidia(), intel()}})
	testutil.NoError(t, os.Remove(filepath.Join(root, libDir, "nvidia-smi")))
	testutil.WriteFile(t, filepath.Join(root, "opt/nvidia-smi"), "", 0o755)
	testutil.NoError(t, os.Mkdir(filepath.Join(root, "usr/bin"), 0o755), os.Symlink("/opt/nvidia-smi", filepath.Join(root, installedSMI)))
	devices, err := s.Devices(t.Context())
	testutil.NoError(t, err)
	for _, d := range devices {
		has := slices.Contains(d.Libraries, discovery.Library{Source: installedSMI, Destination: installedSMI})
		if has != (d.VendorID == pci.VendorNVIDIA) {
			t.Errorf("%s: %v", d.Description, d.Libraries)
		}
	}
}

// TestLinks checks a VM whose driver files are links, as install scripts for Hyper-V make them. They are
// followed inside the VM's root, and those without a target there are reported.
func TestLinks(t *testing.T) {
	t.Parallel()
	s, root := newSource(t, &fakeDriver{adapters: []fakeAdapter{nvidia(), intel()}})
	at := func(path string) string { return filepath.Join(root, path) }
	const lib, driver = wslDir + "/lib/", wslDir + "/drivers/nv_dispi.inf_amd64_1f2e"
	testutil.WriteFile(t, at("opt/nvidia/libcuda.so.1.1"), "", 0o644)
	testutil.NoError(t,
		os.Remove(at(lib+"libcuda.so.1")), os.Symlink("/opt/nvidia/libcuda.so.1.1", at(lib+"libcuda.so.1")),
		os.Rename(at(wslDir+"/lib"), at("opt/lib")), os.Symlink("/opt/lib", at(wslDir+"/lib")),
		os.Rename(at(driver), at("opt/driver")), os.Symlink("/opt/driver", at(driver)),
		os.Symlink("/opt/gone", at("opt/lib/libnvoptix.so.1")), os.Symlink("../../../../../../../etc/hostname", at("opt/lib/out.so")),
	)
	devices, err := s.Devices(t.Context())
	if err != nil || len(devices) != 2 {
		t.Fatal(devices, err)
	}
	var sources []string
	for _, l := range devices[0].Libraries {
		sources = append(sources, l.Source)
	}
	want := []string{driver, lib + "libcuda.so.1", lib + "libd3d12.so", lib + "libdxcore.so", lib + "nvidia-smi", lib + "nvidia-smi"}
	if diff := cmp.Diff(want, sources); diff != "" || !devices[0].Health.OK() {
		t.Errorf("%s: %s", devices[0].Health, diff)
	}
	for i, want := range [][]string{{"libnvoptix.so.1: lstat " + at("opt/gone"), "out.so: lstat " + at("etc/hostname")}, {"out.so: "}} {
		notes := devices[i].Notes
		if len(notes) != len(want) {
			t.Fatalf("%s has the notes %q, want %d", devices[i].Description, notes, len(want))
		}
		for j := range want {
			testutil.CheckError(t, devices[i].Description, errors.New(notes[j]), want[j])
		}
	}
}

func TestDriverPackage(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]string{
		`\SystemRoot\System32\DriverStore\FileRepository\nv_dispi.inf_amd64_1f2e`:         "nv_dispi.inf_amd64_1f2e",
		`C:\Windows\System32\HostDriverStore\filerepository\u0.inf_amd64_0\B1\amd.dll`:    "u0.inf_amd64_0",
		`\??\C:\Windows\System32\DriverStore\FileRepository\FileRepository\x.inf_amd64_1`: "x.inf_amd64_1",
		`C:\Windows\System32\DriverStore\FileRepository\..\..\evil`:                       "",
		`C:\Windows\System32\DriverStore\FileRepository\`:                                 "",
		`C:\Windows\System32`:                                 "",
		strings.Repeat("İ", 40) + `\FileRepository\x.inf`:     "",
		`/usr/lib/wsl/drivers/../../FileRepository/a b/c.dll`: "",
	} {
		if got := driverPackage(path); got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
}
