package doctor

import (
	"errors"
	"strings"
	"testing"
)

// realGPU returns a Windows node with a GPU that was discovered.
func realGPU() Facts {
	return with(healthyWindows(), func(f *Facts) {
		f.GPUs.List[0].LUID, f.GPUs.List[0].DriverStorePath, f.Shims[0].Start = 1, `C:\\nv`, 1234567
	})
}

func TestClaims(t *testing.T) {
	t.Setenv("CONTAINER_SANDBOX_MOUNT_POINT", `C:\hpc`)
	const holds, fails, unchecked = "holds", "does not hold", "not checked"
	for name, test := range map[string]struct {
		facts  Facts
		claim  string
		result string
		detail string
	}{
		"DXCore":          {realGPU(), "DXCore", holds, "PCIROOT(0)#PCI(1B00)"},
		"no LUID":         {healthyWindows(), "DXCore", fails, "has no LUID"},
		"inventory":       {with(realGPU(), func(f *Facts) { f.GPUs.Inventory = "x" }), "DXCore", unchecked, "without an inventory"},
		"no GPU":          {with(realGPU(), func(f *Facts) { f.GPUs.List = nil }), "DXCore", unchecked, "with a GPU"},
		"discovery":       {with(realGPU(), func(f *Facts) { f.GPUs = GPUs{Err: errIO} }), "DXCore", fails, "input/output"},
		"driver store":    {realGPU(), "driver store", holds, "with 1 runtime files"},
		"missing file":    {with(realGPU(), func(f *Facts) { f.GPUs.List[0].Missing = []string{"a.dll"} }), "driver store", fails, "a.dll"},
		"notifications":   {realGPU(), "notifications", unchecked, "dxctl devices --watch"},
		"kubelet":         {with(realGPU(), func(f *Facts) { f.Kubelet.Ready = true }), "kubelet", holds, "directx-advertiser is ready"},
		"no metrics":      {realGPU(), "kubelet", unchecked, "metrics.address"},
		"deaf advertiser": {with(realGPU(), func(f *Facts) { f.Kubelet.AdvertiserErr = errors.New("refused") }), "kubelet", fails, "refused"},
		"no kubelet":      {with(realGPU(), func(f *Facts) { f.Kubelet = nil }), "kubelet", unchecked, "with the kubelet"},
		"HostProcess":     {realGPU(), "HostProcess", holds, `C:\hpc`},
		"nssm":            {realGPU(), "nssm", unchecked, "Restart-Service containerd"},
		"time":            {realGPU(), "time", holds, "starts in 1.23ms"},
		"no shim":         {with(realGPU(), func(f *Facts) { f.Shims[0].Err = errGone }), "time", unchecked, "install the runtime shim"},
	} {
		found := false
		for _, c := range Claims(test.facts, Examine(test.facts).Findings) {
			if found = found || strings.Contains(c.Claim, test.claim); strings.Contains(c.Claim, test.claim) && (c.Result != test.result || !strings.Contains(c.Detail, test.detail)) {
				t.Errorf("%s: %+v, want %s and %q", name, c, test.result, test.detail)
			}
		}
		if !found {
			t.Errorf("%s: no claim has %q", name, test.claim)
		}
	}
}
