package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

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

// Observations are the facts of a Windows node that only claims need.
type Observations struct {
	// Wine reports that this is not real Windows.
	Wine bool
	// HostProcess reports that dxctl runs in a HostProcess container.
	HostProcess bool
	// Links are the junctions and 8.3 names that Windows creates.
	Links []Link
	// ShimStart is the median time of a start of the runtime shim, 0 if unknown.
	ShimStart time.Duration
}

// Link is a path, and the expected and the actual path that it leads to.
type Link struct{ Path, Want, Got string }

// errNotChecked is the error of a claim that this node does not show.
var errNotChecked = errors.New("not checked")

// claim is a line in docs/limits.md.
type claim struct {
	text string
	// check returns what shows the claim, an error if it does not hold, or
	// [errNotChecked]. Nil stands for a claim that dxctl cannot check.
	check func(Facts, Observations) (string, error)
	todo  string
}

// claims are those of docs/limits.md that were not shown on real Windows.
func claims() []claim {
	return []claim{
		{"the real DXCore", checkDXCore, "run this on a node with a GPU and without an inventory"},
		{"driver store lookup (`SetupGetInfDriverStoreLocation`)", checkDriverStore, "run this on a node with a GPU and without an inventory"},
		{"device notifications", nil, "run 'dxctl devices --watch', disable and enable the GPU in Device Manager, and attach what it prints"},
		{"Unix sockets on Windows, that is the advertiser with a Windows kubelet (both ran on Linux)", checkKubelet, "run this on a node with the kubelet and directx-advertiser"},
		{"HostProcess containers, and the Windows image", func(_ Facts, o Observations) (string, error) {
			if !o.HostProcess {
				return "", errNotChecked
			}
			return "this is a HostProcess container", nil
		}, "run this in our pod, with kubectl exec"},
		{"what a restart of containerd under nssm does to containers", nil, "on a node that runs containerd under nssm and may fail: note the processes of containers, run 'Restart-Service containerd', and note them again"},
		{"a restart by a scheduled task (Wine registers the task and does not run it), and of services that depend on containerd", nil, "on a drained node: run 'dxctl runtime configure --restart --restart-mode task', and read restart-task.log in the state directory"},
		{"delayed start and recovery of the Windows service: Wine's service manager has neither", nil, "run 'dxctl service install', end directx-advertiser in Task Manager, restart the node, and attach 'sc.exe query directx-advertiser' after each"},
		{"junctions and 8.3 names of a real NTFS volume", checkLinks, "run this on a volume with 8.3 names"},
		{"any time measurement on Windows", func(_ Facts, o Observations) (string, error) {
			if o.ShimStart == 0 {
				return "", errNotChecked
			}
			return fmt.Sprintf("the runtime shim starts in %s", o.ShimStart.Round(10*time.Microsecond)), nil
		}, "install the runtime shim, and run this again"},
	}
}

// Claims returns what a Windows node shows of the claims, nil for another node.
func Claims(f Facts, o Observations) []Claim {
	if f.OS != "windows" {
		return nil
	}
	var list []Claim
	for _, c := range claims() {
		detail, err := "", errNotChecked
		if c.check != nil && !o.Wine {
			detail, err = c.check(f, o)
		}
		switch {
		case errors.Is(err, errNotChecked):
			list = append(list, Claim{c.text, "not checked", "do this: " + c.todo})
		case err != nil:
			list = append(list, Claim{c.text, "does not hold", oneLine(err.Error())})
		default:
			list = append(list, Claim{c.text, "holds", oneLine(detail)})
		}
	}
	return list
}

// hardware returns the discovered GPUs that are not software renderers.
func hardware(f Facts) ([]GPU, error) {
	if f.GPUs.Inventory != "" {
		return nil, errNotChecked
	}
	list := slices.DeleteFunc(slices.Clone(f.GPUs.List), func(d GPU) bool { return d.Kind() == discovery.KindNone })
	if f.GPUs.Err == nil && len(list) == 0 {
		return nil, errNotChecked
	}
	return list, f.GPUs.Err
}

func checkDXCore(f Facts, _ Observations) (string, error) {
	list, err := hardware(f)
	var names []string
	for _, d := range list {
		if d.LUID == 0 || d.LocationPath == "" {
			return "", fmt.Errorf("GPU %s has LUID %s and location path %q", d.InstanceID, d.LUID, d.LocationPath)
		}
		names = append(names, d.Name())
	}
	return "found " + strings.Join(names, ", "), err
}

func checkDriverStore(f Facts, _ Observations) (string, error) {
	list, err := hardware(f)
	files := 0
	for _, d := range list {
		if d.DriverStorePath == "" || len(d.System32) == 0 || len(d.Missing) > 0 {
			return "", fmt.Errorf("GPU %s has driver store path %q, %d files, and misses %s", d.Name(), d.DriverStorePath, len(d.System32), few(d.Missing))
		}
		files += len(d.System32) + len(d.SysWOW64)
	}
	return fmt.Sprintf("all %d runtime files exist", files), err
}

func checkKubelet(f Facts, _ Observations) (string, error) {
	k := f.Kubelet
	if k == nil || errors.Is(k.AdvertiserErr, fs.ErrNotExist) {
		return "", errNotChecked
	}
	if err := errors.Join(k.SocketErr, k.AdvertiserErr, k.PodResourcesErr); err != nil {
		return "", err
	}
	return fmt.Sprintf("the kubelet has devices of %d resources", len(k.Allocatable)), nil
}

func checkLinks(_ Facts, o Observations) (string, error) {
	if len(o.Links) == 0 {
		return "", errNotChecked
	}
	var shown []string
	for _, l := range o.Links {
		if !strings.EqualFold(l.Got, l.Want) {
			return "", fmt.Errorf("%s leads to %s, not %s", l.Path, l.Got, l.Want)
		}
		shown = append(shown, l.Path+" leads to "+l.Got)
	}
	return strings.Join(shown, ", "), nil
}
