package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"directx-nri/discovery"
)

func (j *judge) devices() {
	j.looked(CheckInventory, CheckDevices, CheckDrivers, CheckFiles)
	g := j.GPUs
	if j.byClass() {
		for i, d := range g.List {
			g.List[i].Device = d.ByClass()
		}
	}
	switch {
	case g.Err == nil:
	case j.Config.Err != nil && g.Inventory == "":
		return // The file that names it cannot be read, which is told.
	case j.isDenied(g.Err, cmp.Or(g.Inventory, "the GPUs of this node")):
		return
	case g.Inventory == "" && j.OS != "windows":
		if !j.has(CheckSetup) {
			j.noInventory()
		}
		return
	default:
		j.problem(CheckInventory, g.Inventory, g.Err.Error(), "without its GPUs being known, this node offers none, and containers that hold one do not start",
			cmp.Or(also(g.Inventory != "", "mend "+g.Inventory+"; 'dxctl devices --inventory "+g.Inventory+"' shows whether it is good"), "run 'dxctl devices', and see the message"))
		return
	}
	if !slices.ContainsFunc(g.List, func(d GPU) bool { return d.Kind() != discovery.KindNone }) {
		j.problem(CheckDevices, "", "this node has no GPU that a container can be given", "there is nothing to offer",
			cmp.Or(also(g.Inventory != "", "describe the GPUs in "+g.Inventory), "install the GPU's driver; 'dxctl devices' shows what is there"))
		return
	}
	var missing []string
	by := map[string]GPU{}
	for _, d := range g.List {
		if d.Kind() == discovery.KindNone {
			continue
		}
		j.device(d)
		if key := strings.Join(d.Missing, "\n"); key != "" {
			// GPUs of one driver miss the same files.
			if _, ok := by[key]; !ok {
				missing, by[key] = append(missing, key), d
			}
		}
		if d.FilesErr != nil && !j.isDenied(d.FilesErr, "the driver files of "+d.Name()) {
			j.unknown(CheckFiles, d.Name(), fmt.Sprintf("the driver files of %s cannot be looked for: %v", d.Name(), d.FilesErr), "files that are not there are left out of containers", "see whether the disk is well")
		}
	}
	for _, key := range missing {
		d := by[key]
		j.problem(CheckFiles, d.Name(), fmt.Sprintf("files that the driver of %s has in its list are not on this node: %s", d.Name(), few(d.Missing)),
			"a container gets the GPU without them, or is not started where they are device nodes, and programs that load them fail",
			cmp.Or(also(g.Inventory != "", "install the driver again, or take them out of "+g.Inventory), "install the GPU's driver again"))
	}
}

func (j *judge) noInventory() {
	const fix = "name the file in config.yaml ('dxctl runtime install --inventory FILE' writes it), or here with --inventory"
	if j.served(ServedByShim) {
		j.problem(CheckInventory, j.Config.Path, "no inventory file is named, and on Linux GPUs are known by one only", "the shim refuses every container that asks for a GPU", fix)
		return
	}
	j.unknown(CheckInventory, j.Config.Path, "no inventory file is named, so it is not known which GPUs this node has", "the devices were not looked at", fix)
}

func (j *judge) device(d GPU) {
	switch {
	case !d.Health.OK():
		fix := "see 'dxctl devices' and the Device Manager; enable the device, or install its driver"
		if j.OS != "windows" {
			fix = "mend the device, or what " + cmp.Or(j.GPUs.Inventory, "the inventory file") + " says of it"
		}
		j.problem(CheckDevices, d.Name(), fmt.Sprintf("GPU %s cannot be used: %s", named(d), d.Health), "it is offered as unhealthy, and no container is given it", fix)
	case j.OS == "windows" && d.LocationPath == "" && !j.byClass():
		j.problem(CheckDevices, d.Name(), fmt.Sprintf("GPU %s has no location path", named(d)), "a Windows container is given devices by location path only", "see 'dxctl devices', and write its location path into the inventory file")
	case j.OS == "windows" && len(d.System32) == 0:
		j.problem(CheckDrivers, d.Name(), fmt.Sprintf("the driver of %s names no runtime files for containers", named(d)), "a container gets the GPU and none of the driver's libraries, so that programs do not find it",
			"install a driver that supports GPU-PV or containers; see 'dxctl devices'")
	case j.OS != "windows" && len(d.DeviceNodes) == 0:
		j.problem(CheckDrivers, d.Name(), fmt.Sprintf("GPU %s names no device node", named(d)), "a Linux container gets nothing by which a program reaches it",
			"add linux: {deviceNodes: [...]} for it in "+cmp.Or(j.GPUs.Inventory, "the inventory file"))
	}
}

func (j *judge) records() {
	r := j.Records
	if r.Folder == "" {
		return // The file that says where they are cannot be read, which is told.
	}
	j.looked(CheckRecords)
	const why = "a container whose record cannot be used does not start"
	switch {
	case r.Err == nil || errors.Is(r.Err, fs.ErrNotExist):
	case j.isDenied(r.Err, r.Folder):
		return
	case isNotPrivate(r.Err):
		j.problem(CheckRecords, r.Folder, r.Err.Error(), "others could have written the records, so that no container is given a GPU", ownFix(j.OS, r.Folder))
		return
	case errors.Is(r.Err, context.DeadlineExceeded):
		j.unknown(CheckRecords, r.Folder, r.Err.Error(), why, "give it more time with --timeout; if that is no help, see whether the disk is well")
		return
	default:
		j.problem(CheckRecords, r.Folder, r.Err.Error(), why, "see whether the disk is well")
		return
	}
	for _, file := range r.Damaged {
		if j.isDenied(file.Err, r.Folder) {
			continue
		}
		j.problem(CheckRecords, file.Path, fmt.Sprintf("an allocation's file cannot be used: %v", file.Err), why, "delete the pod that holds it, then remove the file: "+remove(j.OS, file.Path))
	}
	if len(r.Orphans) > 0 {
		j.problem(CheckRecords, r.Orphans[0], fmt.Sprintf("%d file(s) belong to allocations that have ended: %s", len(r.Orphans), few(r.Orphans)), "they grant nothing, and take room", "restart directx-advertiser, which removes them")
	}
	if len(r.Strange) > 0 {
		j.problem(CheckRecords, r.Strange[0], fmt.Sprintf("%d file(s) among the allocation records are none of ours: %s", len(r.Strange), few(r.Strange)), "they are passed over, and told of at each start of directx-advertiser", "move them away")
	}
}

func (j *judge) permissions() {
	j.looked(CheckPermissions)
	for _, folder := range j.Folders {
		switch {
		case folder.Err == nil || j.isDenied(folder.Err, folder.Path):
		case isNotPrivate(folder.Err):
			j.problem(CheckPermissions, folder.Path, folder.Err.Error(), "others can change "+folder.What, ownFix(j.OS, folder.Path))
		default:
			j.unknown(CheckPermissions, folder.Path, folder.Err.Error(), "it is not known who can change "+folder.What, "see whether the disk is well")
		}
	}
}

func (j *judge) leftovers() {
	l := j.Leftovers
	j.looked(CheckLeftovers)
	switch {
	case l.JournalErr == nil:
	case j.isDenied(l.JournalErr, cmp.Or(l.Journal, "what 'dxctl runtime configure' has changed")):
	default:
		j.problem(CheckLeftovers, l.Journal, l.JournalErr.Error(), "'dxctl runtime configure' and 'unconfigure' refuse to work", "when you do not need what it says: "+remove(j.OS, l.Journal))
	}
	if l.JournalErr == nil && l.Journal != "" && !l.Applied && !j.has(CheckFile) {
		j.problem(CheckLeftovers, l.Journal, "it is written down that containerd's configuration was changed, and the changes are not there any more", "somebody has put another file in its place", "run 'dxctl runtime configure --restart' to have them again, or 'dxctl runtime unconfigure' to forget them")
	}
	j.failed()
	j.installed()
	if l.Backup != "" {
		j.problem(CheckLeftovers, l.Backup, "a copy of containerd's configuration is there, and nothing says what was changed", "'dxctl runtime unconfigure' cannot put the file back", "compare it with "+j.Containerd.ConfigPath+", then "+remove(j.OS, l.Backup))
	}
	if l.Pending != "" {
		j.problem(CheckLeftovers, l.Pending, "containers were handed over from our shim to the real one, and containerd was not restarted since", "the shim cannot be removed until containerd knows", "run 'dxctl runtime uninstall --restart' again")
	}
	if len(l.Abandoned) > 0 && !j.has(CheckShim) {
		j.problem(CheckLeftovers, l.AbandonedBy, fmt.Sprintf("%d container(s) run that were started through this shim, which is gone: %s", len(l.Abandoned), few(l.Abandoned)), "containerd forgets them when it is restarted, and they go on without it",
			"before containerd is restarted: 'dxctl runtime install', then 'dxctl runtime uninstall --restart', which hands them over")
	}
}

// failed looks at what 'dxctl runtime configure' tells of a restart.
func (j *judge) failed() {
	c := j.Failed
	switch {
	case c.Record == "" || j.isDenied(c.Err, c.Record):
	case c.Err != nil:
		j.problem(CheckLeftovers, c.Record, c.Err.Error(), "'dxctl runtime configure --restart' refuses to work until it can be read", "see whether the disk is well, or "+remove(j.OS, c.Record))
	default:
		j.problem(CheckLeftovers, c.Record, fmt.Sprintf("containerd did not come back with what 'dxctl runtime configure' wrote, at %s: %s", c.At.UTC().Format(time.RFC3339), c.Why),
			"the change is not in force, and nobody tries the same again for an hour, the chart's pods included",
			"see containerd's log of that time; then, to have it tried at once: "+remove(j.OS, c.Record)+", and run 'dxctl runtime configure --restart' as before, which the chart's pod does by itself")
	}
}

// hasFailed tells that a change is not in force because containerd did not come back
// with it.
func (j *judge) hasFailed() bool { return j.Failed.Record != "" && j.Failed.Err == nil }

// installed looks at what 'dxctl config install' has put on the node.
func (j *judge) installed() {
	switch {
	case j.Installed.Err == nil:
	case j.isDenied(j.Installed.Err, j.Installed.Record):
	default:
		j.problem(CheckLeftovers, j.Installed.Record, j.Installed.Err.Error(), "'dxctl config install' and 'dxctl runtime uninstall' refuse to touch the configuration", "when you do not need what it says: "+remove(j.OS, j.Installed.Record))
	}
	for _, path := range j.Installed.Changed {
		j.problem(CheckConfig, path, path+" was installed by the cluster ('dxctl config install'), and somebody has changed it since", "what the cluster's configuration says does not come to this node any more",
			"say it in the cluster's configuration, and move the file away: it is installed anew")
	}
	for _, path := range j.Installed.Missing {
		j.problem(CheckLeftovers, path, path+" was installed by the cluster ('dxctl config install'), and is not there any more", "nothing puts it back: the program that does so does not run",
			"see whether the pods of directx-nri run on this node; when they are removed, 'dxctl runtime uninstall' forgets it")
	}
}

// access tells once what could not be looked at.
func (j *judge) access() {
	if len(j.denied) == 0 {
		return
	}
	fix := "run it as root"
	if j.OS == "windows" {
		fix = "run it as an administrator"
	}
	j.unknown(CheckAccess, "", "permission is denied to look at "+strings.Join(j.denied, ", "), "what is wrong there, if anything, is not known", fix)
}
