package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"directx-nri/advertiser/resources"
	"directx-nri/discovery"
	"directx-nri/internal/config"
	"directx-nri/internal/durable"
	"directx-nri/internal/policy"
)

// note tells something that is no fault and that a person may wonder about.
func (j *judge) note(format string, args ...any) {
	j.verdict.Notes = append(j.verdict.Notes, strings.Join(strings.Fields(fmt.Sprintf(format, args...)), " "))
}

// rules are the configuration's, which are never none.
func (f Facts) rules() []config.Resource {
	if len(f.Config.Value.Resources) == 0 {
		return config.Default().Resources
	}
	return f.Config.Value.Resources
}

// byClass tells that Windows containers are given GPUs by their class.
func (f Facts) byClass() bool {
	if f.OS != "windows" {
		return false
	}
	switch f.Config.Value.Assignment {
	case config.AssignByPath:
		return false
	case config.AssignByClass:
		return true
	}
	return f.Windows != nil && !f.Windows.Assignment().Individual
}

func (j *judge) config() {
	j.looked(CheckConfig)
	const whyUntrusted = "the shim refuses a file that others could have written, and with it every container that asks for a GPU"
	c := j.Config
	switch {
	case c.Bad != nil:
		j.problem(CheckConfig, c.Path, c.Bad.Error(), "an older one that was good, "+c.Path+config.LastGood+", is in force: what was changed since has no effect",
			"mend "+c.Path+" in the place that is named; 'dxctl config check' shows whether it is good")
	case c.Err == nil || j.isDenied(c.Err, c.Path):
	case isNotPrivate(c.Err):
		j.problem(CheckConfig, c.Path, c.Err.Error(), whyUntrusted, ownFix(j.OS, folderOf(j.OS, c.Path)))
	case errors.Is(c.Err, durable.ErrUntrusted):
		j.problem(CheckConfig, c.Path, c.Err.Error(), whyUntrusted, fileFix(j.OS, c.Path))
	default:
		j.problem(CheckConfig, c.Path, c.Err.Error(), "the shim refuses every container that asks for a GPU until it can read this file, and the other programs do not start",
			"mend "+c.Path+" in the place that is named, which 'dxctl config check' tells too; or remove it to have the defaults")
	}
	if j.served(ServedByKubelet) {
		j.byKubelet()
	}
}

// byKubelet tells what injection by the kubelet cannot give. Somebody has chosen
// that, so it is no fault.
func (j *judge) byKubelet() {
	text := "containers get their GPUs by the kubelet (injection: kubelet): there are no extra mounts, no GPUs for ctr and nerdctl, a container that starts again has the driver's files of when it was admitted, and nobody refuses one whose GPU has gone since"
	if j.OS == "windows" && !j.byClass() {
		text += ", and a container can have one GPU"
	}
	j.note("%s; see docs/kubelet-injection.md", text)
}

// resources looks whether the rules and the GPUs fit each other. A rule without a
// GPU is for other nodes.
func (j *judge) resources() {
	if j.Config.Err != nil || j.GPUs.Err != nil {
		return
	}
	j.looked(CheckResources)
	var devices []discovery.Device
	for _, d := range j.GPUs.List {
		devices = append(devices, d.Device)
	}
	rules := resources.FromConfig(j.rules())
	used := map[*policy.Resource]bool{}
	var left []string
	for _, a := range resources.Assign(devices, rules) {
		switch {
		case a.Rule != nil:
			used[a.Rule] = true
		case a.Reason == resources.ReasonNoRule:
			left = append(left, a.Device.Name())
		}
	}
	switch {
	case len(left) > 0 && len(used) == 0:
		j.problem(CheckResources, few(left), "none of the configuration's resources is for a GPU of this node", "nothing is offered to the cluster",
			"see 'dxctl devices -o wide' and 'dxctl config show', and change resources in "+j.Config.Path)
	case len(left) > 0:
		j.note("no resource of the configuration is for GPU %s, which is not offered", few(left))
	}
	for i, rule := range rules {
		// One for a kind alone is for nodes of all sorts.
		if alone := (config.Match{Kind: rule.Match.Kind}); !used[&rules[i]] && !sameMatch(j.rules()[i].Match, alone) {
			j.note("resources[%d] in %s, %s, is for no GPU of this node", i, j.Config.Path, rule.Name)
		}
	}
}

// sameMatch tells whether a asks for no more than b, which has a kind alone.
func sameMatch(a, b config.Match) bool {
	return a.Kind == b.Kind && len(a.Vendors)+len(a.Descriptions)+len(a.LocationPaths) == 0 && a.MinMemory == 0 && a.MaxMemory == 0 &&
		a.MinDriver == b.MinDriver && a.MaxDriver == b.MaxDriver && a.Integrated == nil && a.Detachable == nil
}

// hostFolders looks at the folders that pods may have files of.
func (j *judge) hostFolders() {
	if len(j.HostFolders) == 0 {
		return
	}
	j.looked(CheckExtraMounts)
	for _, folder := range j.HostFolders {
		switch {
		case folder.Err == nil || j.isDenied(folder.Err, folder.Path):
		case errors.Is(folder.Err, fs.ErrNotExist):
			j.problem(CheckExtraMounts, folder.Path, fmt.Sprintf("extraMounts.hostFolders has %s, which is not on this node", folder.Path), "pods that ask for a file of it are not started",
				"make the folder, or take it out of "+j.Config.Path)
		case errors.Is(folder.Err, durable.ErrUntrusted):
			j.problem(CheckExtraMounts, folder.Path, fmt.Sprintf("extraMounts.hostFolders has %s, which others can write to", folder.Path),
				"whoever can write there decides what pods with a GPU are given, and can put links there", "let administrators alone write to it, or take it out of "+j.Config.Path)
		default:
			j.unknown(CheckExtraMounts, folder.Path, folder.Err.Error(), "it is not known who can write to a folder that pods may have files of", "see whether the disk is well")
		}
	}
}

// metrics looks at the addresses for metrics. A program that is not running is told
// elsewhere, unless an address that is taken is why.
func (j *judge) metrics() {
	for _, m := range j.Metrics {
		j.looked(CheckMetrics)
		switch {
		case m.Other != "":
			j.problem(CheckMetrics, m.Address, fmt.Sprintf("another program answers at %s, which is %s's by %s: %s", m.Address, m.Program, m.Key, m.Other),
				m.Program+" ends at its start, because its address is taken", "end that program, or set "+m.Key+" in "+j.Config.Path+" to an address that is free")
		case m.Nobody != nil && j.runs(m.Program):
			j.problem(CheckMetrics, m.Address, fmt.Sprintf("%s runs and does not serve metrics at %s: %v", m.Program, m.Address, m.Nobody), "it cannot be watched",
				"restart "+m.Program+" with this configuration: "+m.Key+" takes a restart")
		case m.Nobody == nil && m.Unhealthy != "":
			j.problem(CheckMetrics, m.Address, fmt.Sprintf("%s says that it does not work: %s", m.Program, m.Unhealthy), "it can give no GPUs as long as that is so", "see its log, and restart it if it goes on")
		}
	}
}

// runs tells whether one of our daemons is known to run.
func (j *judge) runs(program string) bool {
	if program == programPlugin {
		return j.NRI.PluginErr == nil && j.NRI.PluginSocket != ""
	}
	for _, err := range j.Kubelet.Advertiser {
		if err == nil {
			return true
		}
	}
	return false
}

// taken tells whether another program has the address of one of ours, which that
// cannot start without.
func (j *judge) taken(program string) bool {
	for _, m := range j.Metrics {
		if m.Program == program && m.Other != "" {
			return true
		}
	}
	return false
}
