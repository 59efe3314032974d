package doctor

import (
	"errors"
	"strings"
	"testing"
)

// realGPU returns a Windows node with a GPU that was discovered.
func realGPU() Facts {
	return with(healthyWindows(), func(f *Facts) { f.GPUs.List[0].LUID, f.GPUs.List[0].DriverStorePath = 1, `C:\\nv` })
}

func TestClaims(t *testing.T) {
	t.Parallel()
	all := Observations{HostProcess: "this is a HostProcess container", Links: `C:\PROGRA~1 leads to C:\Program Files`, ShimStart: "starts in 1.23ms"}
	const holds, fails, unchecked = "holds", "does not hold", "not checked"
	for name, test := range map[string]struct {
		facts  Facts
		seen   Observations
		claim  string
		result string
		detail string
	}{
		"DXCore":          {realGPU(), all, "DXCore", holds, "PCIROOT(0)#PCI(1B00)"},
		"no LUID":         {healthyWindows(), all, "DXCore", fails, "has no LUID"},
		"inventory":       {with(realGPU(), func(f *Facts) { f.GPUs.Inventory = "x" }), all, "DXCore", unchecked, "without an inventory"},
		"no GPU":          {with(realGPU(), func(f *Facts) { f.GPUs.List = nil }), all, "DXCore", unchecked, "with a GPU"},
		"discovery":       {with(realGPU(), func(f *Facts) { f.GPUs = GPUs{Err: errIO} }), all, "DXCore", fails, "input/output"},
		"driver store":    {realGPU(), all, "driver store", holds, "with 1 runtime files"},
		"missing file":    {with(realGPU(), func(f *Facts) { f.GPUs.List[0].Missing = []string{"a.dll"} }), all, "driver store", fails, "a.dll"},
		"notifications":   {realGPU(), all, "notifications", unchecked, "dxctl devices --watch"},
		"kubelet":         {realGPU(), all, "kubelet", holds, "devices of 1 resources"},
		"deaf advertiser": {with(realGPU(), func(f *Facts) { f.Kubelet.AdvertiserErr = errors.New("refused") }), all, "kubelet", fails, "refused"},
		"no kubelet":      {with(realGPU(), func(f *Facts) { f.Kubelet = nil }), all, "kubelet", unchecked, "with the kubelet"},
		"HostProcess":     {realGPU(), all, "HostProcess", holds, "this is a HostProcess container"},
		"nssm":            {realGPU(), all, "nssm", unchecked, "Restart-Service containerd"},
		"8.3 name":        {realGPU(), all, "8.3", holds, `C:\PROGRA~1 leads to C:\Program Files`},
		"another path":    {realGPU(), Observations{LinksErr: errIO}, "8.3", fails, "input/output"},
		"time":            {realGPU(), all, "time", holds, "starts in 1.23ms"},
		"Wine":            {realGPU(), Observations{Wine: true, HostProcess: "x"}, "HostProcess", unchecked, "kubectl exec"},
	} {
		list := Claims(test.facts, test.seen, Examine(test.facts))
		if len(list) != len(claims(Facts{}, Observations{})) {
			t.Fatalf("%s: %d claims", name, len(list))
		}
		for _, c := range list {
			if strings.Contains(c.Claim, test.claim) && (c.Result != test.result || !strings.Contains(c.Detail, test.detail)) {
				t.Errorf("%s: %+v, want %s and %q", name, c, test.result, test.detail)
			}
		}
	}
	if list := Claims(healthyNode(), all, Report{}); list != nil {
		t.Errorf("claims of a Linux node: %+v", list)
	}
}
