package resources

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/pci"
	"github.com/directx-nri/directx-nri/internal/policy"
)

func t4() discovery.Device {
	return discovery.Device{
		InstanceID: "T4", Description: "NVIDIA Tesla T4", VendorID: pci.VendorNVIDIA,
		LocationPath: "PCIROOT(0)#PCI(1B00)", DriverVersion: "31.0.15.3770", DedicatedMemory: 16 << 30, SupportsDisplay: true, SupportsCompute: true,
	}
}

func TestMatches(t *testing.T) {
	t.Parallel()
	yes, no := true, false
	version := func(v string) func(*discovery.Device) {
		return func(d *discovery.Device) { d.DriverVersion = v }
	}
	for _, test := range []struct {
		name   string
		match  policy.Match
		change func(*discovery.Device)
		want   bool
	}{
		{name: "no condition", want: true},
		{name: "kind", match: policy.Match{Kind: "display"}, want: true},
		{name: "another kind", match: policy.Match{Kind: "compute"}},
		{name: "compute kind", match: policy.Match{Kind: "compute"}, change: func(d *discovery.Device) { d.SupportsDisplay = false }, want: true},
		{name: "vendor", match: policy.Match{Vendors: []pci.Vendor{0x1002, 0x10DE}}, want: true},
		{name: "another vendor", match: policy.Match{Vendors: []pci.Vendor{0x1002}}},
		{name: "unknown vendor", match: policy.Match{Vendors: []pci.Vendor{0x10DE}}, change: func(d *discovery.Device) { d.VendorID = 0 }},
		{name: "description", match: policy.Match{Descriptions: []string{"*A100*", "nvidia tesla t?"}}, want: true},
		{name: "part of the description", match: policy.Match{Descriptions: []string{"Tesla"}}},
		{name: "no description", match: policy.Match{Descriptions: []string{"?*"}}, change: func(d *discovery.Device) { d.Description = "" }},
		{name: "location path", match: policy.Match{LocationPaths: []string{"pciroot(0)#*"}}, want: true},
		{name: "another location path", match: policy.Match{LocationPaths: []string{"PCIROOT(1)#*"}}},
		{name: "just enough memory", match: policy.Match{DedicatedMemory: policy.MemoryBounds{Min: 16 << 30}}, want: true},
		{name: "too little memory", match: policy.Match{DedicatedMemory: policy.MemoryBounds{Min: 16<<30 + 1}}},
		{name: "just little enough memory", match: policy.Match{DedicatedMemory: policy.MemoryBounds{Max: 16 << 30}}, want: true},
		{name: "too much memory", match: policy.Match{DedicatedMemory: policy.MemoryBounds{Max: 16<<30 - 1}}},
		{name: "oldest driver", match: policy.Match{DriverVersion: policy.DriverBounds{Min: policy.DriverVersion{31, 0, 15, 3770}}}, want: true},
		{name: "driver too old", match: policy.Match{DriverVersion: policy.DriverBounds{Min: policy.DriverVersion{31, 0, 15, 3771}}}},
		{name: "newest driver", match: policy.Match{DriverVersion: policy.DriverBounds{Max: policy.DriverVersion{31, 0, 15, 3770}}}, want: true},
		{name: "driver too new", match: policy.Match{DriverVersion: policy.DriverBounds{Max: policy.DriverVersion{31, 0, 14, 9999}}}},
		{name: "numbers, not text", match: policy.Match{DriverVersion: policy.DriverBounds{Min: policy.DriverVersion{4, 0, 0, 0}, Max: policy.DriverVersion{200, 0, 0, 0}}}, want: true},
		{name: "unknown driver version without bounds", change: version(""), want: true},
		{name: "unknown driver version, to", match: policy.Match{DriverVersion: policy.DriverBounds{Max: policy.DriverVersion{65535}}}, change: version("beta")},
		{name: "a driver version of three parts is not known", match: policy.Match{DriverVersion: policy.DriverBounds{Max: policy.DriverVersion{65535}}}, change: version("535.104.5")},
		{name: "no core compute", match: policy.Match{MachineLearningOnly: &no}, change: func(d *discovery.Device) { d.MachineLearningOnly = true }},
		{name: "integrated", match: policy.Match{Integrated: &yes}},
		{name: "integrated, as required", match: policy.Match{Integrated: &yes}, change: func(d *discovery.Device) { d.Integrated = true }, want: true},
		{name: "detachable", match: policy.Match{Detachable: &no}, change: func(d *discovery.Device) { d.Detachable = true }},
	} {
		d := t4()
		if test.change != nil {
			test.change(&d)
		}
		if got := matches(d, test.match); got != test.want {
			t.Errorf("%s: %v", test.name, got)
		}
	}
}

func TestMatch(t *testing.T) {
	t.Parallel()
	a100, tesla, mcdm := t4(), t4(), t4()
	a100.InstanceID, a100.Description = "A100", "NVIDIA A100"
	mcdm.InstanceID, mcdm.SupportsDisplay = "MCDM", false
	software := discovery.Device{InstanceID: "WARP", SupportsDisplay: true, Software: true}
	nothing := discovery.Device{InstanceID: "NOTHING"}
	withdrawn := discovery.Device{InstanceID: "NPU", Health: discovery.Health{Reason: "library missing"}}
	small := policy.ResourceRule{Name: "x/gpu", Match: policy.Match{Descriptions: []string{"*T4"}, Kind: "display"}, Replicas: 2}
	big := policy.ResourceRule{Name: "x/gpu", Match: policy.Match{Descriptions: []string{"*A100"}}, Replicas: 8}
	all := policy.ResourceRule{Name: "x/rest", Replicas: 1}
	for _, test := range []struct {
		name  string
		rules []policy.ResourceRule
		want  string
	}{
		{name: "no rule", want: "WARP:software A100:rule T4:rule MCDM:rule NOTHING:neither NPU:library"},
		{name: "one rule for all", rules: []policy.ResourceRule{all}, want: "WARP:software A100=x/rest*1 T4=x/rest*1 MCDM=x/rest*1 NOTHING:neither NPU:library"},
		{name: "the first that matches", rules: []policy.ResourceRule{small, all, big}, want: "WARP:software A100=x/rest*1 T4=x/gpu*2 MCDM=x/rest*1 NOTHING:neither NPU:library"},
		{name: "two rules of one name", rules: []policy.ResourceRule{small, big}, want: "WARP:software A100=x/gpu*8 T4=x/gpu*2 MCDM:rule NOTHING:neither NPU:library"},
	} {
		if diff := cmp.Diff(test.want, written(Match([]discovery.Device{software, a100, tesla, mcdm, nothing, withdrawn}, policy.Policy{Resources: test.rules}, ""))); diff != "" {
			t.Errorf("%s: %s", test.name, diff)
		}
	}
}

func TestMatchOnEachSystem(t *testing.T) {
	t.Parallel()
	linux := discovery.Device{InstanceID: "LINUX", SupportsDisplay: true, DeviceNodes: []discovery.DeviceNode{{Path: "/dev/dxg"}}}
	both, noPath := linux, t4()
	both.InstanceID, both.LocationPath = "BOTH", "PCIROOT(0)"
	noPath.InstanceID, noPath.LocationPath = "NOPATH", ""
	for os, want := range map[string]string{
		"windows": "T4=x/gpu*1 LINUX:no location path BOTH=x/gpu*1 NOPATH=x/gpu*1",
		"linux":   "T4:no device node LINUX=x/gpu*1 BOTH=x/gpu*1 NOPATH:no device node",
	} {
		if got := written(Match([]discovery.Device{t4(), linux, both, noPath}, policy.Policy{Resources: []policy.ResourceRule{{Name: "x/gpu", Replicas: 1}}}, os)); got != want {
			t.Errorf("%s: %s, want %s", os, got, want)
		}
	}
}

// TestOneResource: the resource of a node that can have one is the same whatever GPUs it has now.
func TestOneResource(t *testing.T) {
	t.Parallel()
	mcdm := t4()
	mcdm.InstanceID, mcdm.SupportsDisplay = "MCDM", false
	for want, test := range map[string]struct {
		injection policy.Injection
		devices   []discovery.Device
	}{
		"MCDM:one resource T4=x/display*1": {policy.InjectByKubelet, []discovery.Device{mcdm, t4()}},
		"MCDM:one resource":                {policy.InjectByKubelet, []discovery.Device{mcdm}},
		"T4=x/display*1":                   {policy.InjectByKubelet, []discovery.Device{t4()}},
		"T4=x/display*1 MCDM=x/compute*1":  {policy.InjectByNRI, []discovery.Device{t4(), mcdm}},
	} {
		if got := written(Match(test.devices, policy.Policy{Injection: test.injection, Resources: []policy.ResourceRule{
			{Name: "x/display", Replicas: 1, Match: policy.Match{Kind: "display"}}, {Name: "x/compute", Replicas: 1, Match: policy.Match{Kind: "compute"}},
		}}, "")); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// written describes devices and their rules in short.
func written(devices []Device) string {
	words := make([]string, 0, len(devices))
	for _, d := range devices {
		word := d.InstanceID
		if d.Rule != nil {
			word += "=" + d.Rule.Name + "*" + string(rune('0'+d.Rule.Replicas))
		}
		for reason, short := range map[string]string{
			"software": "software", "neither": "neither",
			"no resource of": "rule", "no device node": "no device node",
			"no location path": "no location path", "move x/compute to the front": "one resource",
			"library": "library",
		} {
			if strings.Contains(d.Reason, reason) {
				word += ":" + short
			}
		}
		words = append(words, word)
	}
	return strings.Join(words, " ")
}
