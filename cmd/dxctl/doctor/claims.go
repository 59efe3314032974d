package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/internal/hostfiles"
)

// Claim is something that was not shown on real Windows, and what this node shows.
type Claim struct {
	// Claim is a line in docs/hardware.md.
	Claim string `json:"claim"`
	// Result is "holds", "does not hold" or "not checked".
	Result string `json:"result"`
	// Detail is what shows it, or what to do to find out.
	Detail string `json:"detail"`
}

// Claims returns what this Windows node, with these facts and findings, shows of the
// claims.
func Claims(f Facts, findings []Finding) []Claim {
	var list []Claim
	// add adds a claim. Without evidence, todo describes how to check it. An error and
	// findings of the checks disprove it.
	add := func(claim, todo, evidence string, err error, checks ...string) {
		c := Claim{claim, "holds", errlog.OneLine(evidence)}
		disproof := slices.IndexFunc(findings, func(f Finding) bool { return slices.Contains(checks, f.Check) })
		switch {
		case err != nil:
			c.Result, c.Detail = "does not hold", errlog.OneLine(err.Error())
		case evidence == "":
			c.Result, c.Detail = "not checked", "do this: "+todo
		case disproof >= 0:
			c.Result, c.Detail = "does not hold", findings[disproof].Problem
		}
		list = append(list, c)
	}
	const withGPU = "run this on a node with a GPU and without an inventory"
	gpus, gpuErr := showGPUs(f.GPUs)
	add("the real DXCore", withGPU, gpus, gpuErr, CheckDevices)
	add("driver store lookup (`SetupGetInfDriverStoreLocation`)", withGPU, gpus, gpuErr, CheckDevices, CheckFiles)
	add("device notifications", "run 'dxctl devices --watch', disable and enable the GPU in Device Manager, and attach what it prints", "", nil)
	kubelet := ""
	if k := f.Kubelet; k != nil && !errors.Is(k.AdvertiserErr, fs.ErrNotExist) && (k.Ready || k.AdvertiserErr != nil || k.ReadyErr != nil) {
		kubelet = "directx-advertiser is ready: the kubelet watches its resources"
	}
	add("Unix sockets on Windows, that is the advertiser with a Windows kubelet (both ran on Linux)", "run this on a node with the kubelet and directx-advertiser, whose metrics.address is set",
		kubelet, nil, CheckKubelet, CheckAdvertiser, CheckRegistration)
	hostProcess := os.Getenv("CONTAINER_SANDBOX_MOUNT_POINT") // where Windows mounts our image
	add("HostProcess containers, and the Windows image", "run this in our pod, with kubectl exec", hostProcess, nil)
	add("what a restart of containerd under nssm does to containers",
		"on a node that runs containerd under nssm and may fail: note the processes of containers, run 'Restart-Service containerd', and note them again", "", nil)
	add("a restart by a scheduled task (Wine registers the task and does not run it), and of services that depend on containerd",
		"on a drained node: run 'dxctl runtime configure --restart --restart-mode task', and read restart-task.log in the state directory", "", nil)
	add("delayed start and recovery of the Windows service: Wine's service manager has neither",
		"run 'dxctl service install', end directx-advertiser in Task Manager, restart the node, and attach 'sc.exe query directx-advertiser' after each", "", nil)
	links, linksErr := followLinks(filepath.VolumeName(os.Getenv("SystemRoot")) + `\`)
	add("junctions and 8.3 names of a real NTFS volume", "run this on a volume with 8.3 names", links, linksErr)
	start := ""
	if i := slices.IndexFunc(f.Shims, func(s Shim) bool { return s.Err == nil }); i >= 0 {
		start = fmt.Sprintf("the runtime shim starts in %s", f.Shims[i].Start.Round(10*time.Microsecond))
	}
	add("any time measurement on Windows", "install the runtime shim, and run this again", start, nil)
	return list
}

// showGPUs names the GPUs that were discovered and are not software renderers.
func showGPUs(g GPUs) (string, error) {
	if g.Inventory != "" {
		return "", nil
	}
	var names []string
	for _, d := range g.List {
		switch {
		case d.Kind() == discovery.KindNone:
		case d.LUID == 0:
			return "", fmt.Errorf("GPU %s has no LUID", d.InstanceID)
		default:
			names = append(names, fmt.Sprintf("%s with %d runtime files", d.Name(), len(d.System32)+len(d.SysWOW64)))
		}
	}
	return strings.Join(names, ", "), g.Err
}

// followLinks follows the junction and the 8.3 name that Windows creates on a drive, and
// returns where they lead.
func followLinks(drive string) (found string, err error) {
	for name, want := range map[string]string{"Documents and Settings": "Users", "PROGRA~1": "Program Files"} {
		path, _, pathErr := hostfiles.Root("").Resolve(drive + name)
		if errors.Is(pathErr, fs.ErrNotExist) {
			continue
		}
		found += name + " leads to " + path + " "
		if pathErr == nil && !strings.EqualFold(path, drive+want) {
			pathErr = fmt.Errorf("%s leads to %s, not %s", name, path, drive+want)
		}
		err = errors.Join(err, pathErr)
	}
	return found, err
}
