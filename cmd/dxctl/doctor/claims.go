package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"directx-nri/discovery"
)

// Claim is something that was not shown on real Windows, and what this node shows.
type Claim struct {
	Claim string `json:"claim"`
	// Result is "holds", "does not hold" or "not checked".
	Result string `json:"result"`
	// Detail is what shows it, or what to do to find out.
	Detail string `json:"detail"`
}

// Observations are the facts of a Windows node that only claims need. Each text is
// empty if it was not observed.
type Observations struct {
	// Wine reports that this is not real Windows.
	Wine bool
	// HostProcess describes the HostProcess container in which dxctl runs.
	HostProcess string
	// Links describes the junctions and 8.3 names that Windows creates, and LinksErr
	// those that do not lead where they should.
	Links    string
	LinksErr error
	// ShimStart describes the time of a start of the runtime shim.
	ShimStart string
}

// claim is a line in docs/limits.md.
type claim struct {
	text string
	// evidence is what the node shows of the claim, "" if nothing, and err disproves it.
	evidence string
	err      error
	// checks are those whose findings disprove it.
	checks []string
	todo   string
}

// claims are those of docs/limits.md that were not shown on real Windows.
func claims(f Facts, o Observations) []claim {
	const withGPU = "run this on a node with a GPU and without an inventory"
	gpus, gpuErr := showGPUs(f.GPUs)
	kubelet := ""
	if k := f.Kubelet; k != nil && !errors.Is(k.AdvertiserErr, fs.ErrNotExist) {
		kubelet = fmt.Sprintf("the kubelet has devices of %d resources", len(k.Allocatable))
	}
	return []claim{
		{"the real DXCore", gpus, gpuErr, []string{CheckDevices}, withGPU},
		{"driver store lookup (`SetupGetInfDriverStoreLocation`)", gpus, gpuErr, []string{CheckDevices, CheckFiles}, withGPU},
		{"device notifications", "", nil, nil, "run 'dxctl devices --watch', disable and enable the GPU in Device Manager, and attach what it prints"},
		{"Unix sockets on Windows, that is the advertiser with a Windows kubelet (both ran on Linux)", kubelet, nil, []string{CheckKubelet, CheckAdvertiser, CheckRegistration}, "run this on a node with the kubelet and directx-advertiser"},
		{"HostProcess containers, and the Windows image", o.HostProcess, nil, nil, "run this in our pod, with kubectl exec"},
		{"what a restart of containerd under nssm does to containers", "", nil, nil, "on a node that runs containerd under nssm and may fail: note the processes of containers, run 'Restart-Service containerd', and note them again"},
		{"a restart by a scheduled task (Wine registers the task and does not run it), and of services that depend on containerd", "", nil, nil, "on a drained node: run 'dxctl runtime configure --restart --restart-mode task', and read restart-task.log in the state directory"},
		{"delayed start and recovery of the Windows service: Wine's service manager has neither", "", nil, nil, "run 'dxctl service install', end directx-advertiser in Task Manager, restart the node, and attach 'sc.exe query directx-advertiser' after each"},
		{"junctions and 8.3 names of a real NTFS volume", o.Links, o.LinksErr, nil, "run this on a volume with 8.3 names"},
		{"any time measurement on Windows", o.ShimStart, nil, nil, "install the runtime shim, and run this again"},
	}
}

// Claims returns what a Windows node with a report shows of the claims, nil for another
// node.
func Claims(f Facts, o Observations, r Report) (list []Claim) {
	if f.OS != "windows" {
		return nil
	}
	for _, c := range claims(f, o) {
		disproof := slices.IndexFunc(r.Findings, func(f Finding) bool { return slices.Contains(c.checks, f.Check) })
		result := Claim{c.text, "holds", c.evidence}
		switch {
		case c.err != nil && !o.Wine:
			result = Claim{c.text, "does not hold", c.err.Error()}
		case c.evidence == "" || o.Wine:
			result = Claim{c.text, "not checked", "do this: " + c.todo}
		case disproof >= 0:
			result = Claim{c.text, "does not hold", r.Findings[disproof].Problem}
		}
		result.Detail = oneLine(result.Detail)
		list = append(list, result)
	}
	return list
}

// showGPUs names the GPUs that were discovered and are not software renderers.
func showGPUs(g GPUs) (string, error) {
	if g.Inventory != "" {
		return "", nil
	}
	var names []string
	for _, d := range g.List {
		if d.Kind() == discovery.KindNone {
			continue
		}
		if d.LUID == 0 {
			return "", fmt.Errorf("GPU %s has no LUID", d.InstanceID)
		}
		names = append(names, fmt.Sprintf("%s with %d runtime files", d.Name(), len(d.System32)+len(d.SysWOW64)))
	}
	return strings.Join(names, ", "), g.Err
}
