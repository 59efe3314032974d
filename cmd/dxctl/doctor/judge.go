package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"directx-nri/advertiser/resources"
	"directx-nri/discovery"
	"directx-nri/internal/config"
	"directx-nri/internal/containerdconfig"
	"directx-nri/internal/crihandlers"
	"directx-nri/internal/readiness"
	"directx-nri/internal/trusted"
	"directx-nri/internal/winpath"
)

// What is looked at, by the names that findings have.
const (
	CheckConfig       = "config"             // our config.yaml
	CheckResources    = "resources"          // its rules and the GPUs fit each other
	CheckExtraMounts  = "extra-mounts"       // the folders for pods' further files
	CheckMetrics      = "metrics"            // our programs serve them where they are to
	CheckInventory    = "inventory"          // the inventory file, or the node's answer
	CheckDevices      = "devices"            // GPUs are there and healthy
	CheckDrivers      = "drivers"            // drivers say which files a container needs
	CheckFiles        = "files"              // those files are on disk
	CheckHCS          = "hcs"                // Windows can give single GPUs
	CheckContainerd   = "containerd"         // it runs and answers
	CheckVersion      = "containerd-version" // it is new enough
	CheckFile         = "containerd-config"  // its file is sound
	CheckHandlers     = "handlers"           // runtime handlers go through our shim
	CheckAnnotations  = "annotations"        // they hand on our annotations
	CheckLoaded       = "loaded"             // the running containerd has the file's settings
	CheckShim         = "shim"               // our shim is there and works
	CheckShimVersion  = "shim-version"       // it is of this program's version
	CheckRealShim     = "real-shim"          // the real one is there too
	CheckNRI          = "nri"                // NRI is on
	CheckPlugin       = "plugin"             // our NRI plugin is registered
	CheckKubelet      = "kubelet"            // it takes device plugins
	CheckPodResources = "pod-resources"      // it tells which pods hold what
	CheckAdvertiser   = "advertiser"         // our device plugin runs
	CheckRegistration = "registration"       // the kubelet offers our GPUs
	CheckRecords      = "records"            // the allocation records are sound
	CheckPermissions  = "permissions"        // nobody else can write our folders
	CheckLeftovers    = "leftovers"          // nothing was broken off half way
	CheckSetup        = "setup"              // something of ours is set up at all
	CheckAccess       = "access"             // all of it could be looked at
)

// Verdict is what was found, and for what the node was taken.
type Verdict struct {
	Role Role
	// ServedBy is who gives containers their GPUs, in the order kubelet, nri, shim;
	// none when nothing of ours is set up.
	ServedBy []ServedBy
	// Notes tell what is no fault, and that a person may wonder about.
	Notes []string
	// Checks are the names of what was looked at.
	Checks   []string
	Findings []Finding
}

// Judge returns what is wrong with the node: one finding for one cause, with
// nothing that only follows from another.
func Judge(f Facts) []Finding { return Examine(f).Findings }

// Examine is [Judge] with what the node was taken for.
func Examine(f Facts) Verdict {
	j := &judge{Facts: f, verdict: Verdict{Role: role(f), ServedBy: servedBy(f), Findings: []Finding{}}}
	if len(j.verdict.ServedBy) == 0 && !isClosed(f) {
		j.setup()
	}
	j.config()
	j.devices()
	j.resources()
	j.hostFolders()
	j.windows()
	j.containerd()
	j.metrics()
	if j.served(ServedByShim) {
		j.shim()
	}
	if j.served(ServedByNRI) {
		j.nri()
	}
	if j.verdict.Role == RoleKubernetes && len(j.verdict.ServedBy) > 0 {
		j.kubelet()
	}
	j.records()
	j.permissions()
	j.leftovers()
	j.access()
	return j.verdict
}

// role tells what the node is for. A kubelet that is not running leaves its
// folder, and an advertiser waits in it.
func role(f Facts) Role {
	if f.Role != RoleAuto && f.Role != "" {
		return f.Role
	}
	if f.Kubelet.FolderErr != nil && errors.Is(f.Kubelet.FolderErr, fs.ErrNotExist) {
		return RoleStandalone
	}
	return RoleKubernetes
}

// servedBy tells by whom containers are to get their GPUs.
func servedBy(f Facts) []ServedBy {
	if f.ServedBy != ServedByAuto && f.ServedBy != "" {
		return []ServedBy{f.ServedBy}
	}
	var list []ServedBy
	c := f.Config.Value
	if c.Injection == config.InjectByKubelet && role(f) == RoleKubernetes {
		list = append(list, ServedByKubelet)
		if isRouted(f) {
			list = append(list, ServedByShim)
		}
		return list
	}
	if f.OS != "windows" && c.ServedBy == config.ServedByShim && f.Config.Exists && role(f) == RoleKubernetes {
		return []ServedBy{ServedByShim}
	}
	if f.OS != "windows" && role(f) == RoleKubernetes {
		pluginSeen := f.NRI.PluginErr == nil || f.NRI.Started
		// NRI may be on for others, and in containerd 2 it always is.
		if pluginSeen || f.Containerd.FileErr == nil && f.Containerd.File.NRI && hasTraces(f) {
			list = append(list, ServedByNRI)
		}
	}
	if isRouted(f) || f.OS == "windows" && isInstalled(f) || role(f) == RoleStandalone && isInstalled(f) {
		list = append(list, ServedByShim)
	}
	return list
}

func isRouted(f Facts) bool {
	return slices.ContainsFunc(f.Containerd.File.Handlers, containerdconfig.Handler.Ours) ||
		slices.ContainsFunc(f.Containerd.Loaded, crihandlers.Handler.Ours)
}

// isInstalled tells that a shim of ours is there, broken or not, or that somebody
// has written a configuration for one.
func isInstalled(f Facts) bool {
	return f.Config.Exists || slices.ContainsFunc(f.Shims, func(s Shim) bool { return !errors.Is(s.Err, fs.ErrNotExist) })
}

// hasTraces tells that something of ours has been on this node.
func hasTraces(f Facts) bool {
	answers := false
	for _, err := range f.Kubelet.Advertiser {
		answers = answers || err == nil
	}
	return answers || isInstalled(f) || len(f.Folders) > 0
}

// isClosed tells that it could not be looked at what is set up.
func isClosed(f Facts) bool {
	return slices.ContainsFunc([]error{f.Containerd.Err, f.Containerd.FileErr, f.NRI.PluginErr, f.Config.Err, f.Kubelet.FolderErr},
		func(err error) bool { return errors.Is(err, fs.ErrPermission) })
}

// judge is the facts and what is concluded from them so far.
type judge struct {
	Facts
	verdict Verdict
	// denied are what could not be looked at for want of permission.
	denied []string
}

func (j *judge) served(by ServedBy) bool { return slices.Contains(j.verdict.ServedBy, by) }

// looked notes that something was looked at.
func (j *judge) looked(checks ...string) {
	for _, check := range checks {
		if !slices.Contains(j.verdict.Checks, check) {
			j.verdict.Checks = append(j.verdict.Checks, check)
		}
	}
}

// has tells whether one of the checks found something.
func (j *judge) has(checks ...string) bool {
	return slices.ContainsFunc(j.verdict.Findings, func(f Finding) bool { return slices.Contains(checks, f.Check) })
}

func (j *judge) problem(check, object, problem, why, fix string) {
	j.add(Finding{Check: check, Severity: Problem, Object: object, Problem: problem, Why: why, Fix: fix})
}

func (j *judge) unknown(check, object, problem, why, fix string) {
	j.add(Finding{Check: check, Severity: Unknown, Object: object, Problem: problem, Why: why, Fix: fix})
}

func (j *judge) add(f Finding) {
	j.looked(f.Check)
	for _, text := range []*string{&f.Object, &f.Problem, &f.Why, &f.Fix} {
		*text = strings.Join(strings.Fields(*text), " ")
	}
	j.verdict.Findings = append(j.verdict.Findings, f)
}

// isDenied notes what could not be looked at for want of permission.
func (j *judge) isDenied(err error, what string) bool {
	if !errors.Is(err, fs.ErrPermission) {
		return false
	}
	if !slices.Contains(j.denied, what) {
		j.denied = append(j.denied, what)
	}
	return true
}

func (j *judge) setup() {
	fix := "run 'dxctl runtime install', then 'dxctl runtime configure --restart'"
	if j.verdict.Role == RoleStandalone {
		fix = "run 'dxctl runtime install'; on a node of a cluster, 'dxctl runtime configure --restart' after it"
	}
	j.problem(CheckSetup, "", "nothing of directx-nri is set up on this node: no NRI plugin runs, no runtime handler goes through our shim, and no shim is installed",
		"no container of this node can have a GPU", fix)
}

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

func (j *judge) windows() {
	if j.Windows == nil {
		return
	}
	j.looked(CheckHCS)
	a := j.Windows.Assignment()
	switch {
	case errors.Is(j.Windows.SchemasErr, context.DeadlineExceeded):
		j.problem(CheckHCS, "vmcompute", fmt.Sprintf("Windows' container service does not answer: %v", j.Windows.SchemasErr), "no container can be started or stopped",
			"in PowerShell: Restart-Service -Force vmcompute; if it goes on, restart the node")
	case !a.Individual && j.Config.Value.Assignment == config.AssignByPath:
		j.problem(CheckHCS, j.Windows.Windows.String(), a.Reason, "the container service refuses a container with a single GPU, and assignmentMode: location-path gives it one",
			"set assignmentMode: auto in "+j.Config.Path+", or use Windows Server 2022 or newer on nodes with GPUs")
	case !a.Individual:
		j.note("%s", a.Reason)
	case errors.Is(j.Windows.SchemasErr, errors.ErrUnsupported):
		j.problem(CheckHCS, j.Windows.Windows.String(), fmt.Sprintf("Windows' container service is not there: %v", j.Windows.SchemasErr), "no container can be started",
			"in PowerShell: Install-WindowsFeature Containers; then restart the node")
	case j.Windows.SchemasErr != nil && !j.isDenied(j.Windows.SchemasErr, "Windows' container service"):
		j.unknown(CheckHCS, j.Windows.Windows.String(), fmt.Sprintf("Windows' container service does not say what it can do: %v", j.Windows.SchemasErr), a.Reason, "run 'dxctl capabilities' as an administrator")
	}
}

func (j *judge) containerd() {
	c := j.Containerd
	j.looked(CheckContainerd, CheckFile)
	switch {
	case c.Err == nil:
		j.version()
	case j.isDenied(c.Err, "containerd on "+c.Socket):
	case c.WithoutCRI && j.verdict.Role == RoleStandalone:
		// ctr and nerdctl do without.
	case c.WithoutCRI:
		j.problem(CheckContainerd, c.Socket, "containerd runs without its CRI plugin", "the kubelet can start no pod by it", "take cri out of disabled_plugins in "+c.ConfigPath+", and restart containerd")
	case errors.Is(c.Err, context.DeadlineExceeded):
		j.problem(CheckContainerd, c.Socket, fmt.Sprintf("containerd does not answer: %v", c.Err), "no container can be started or stopped", j.restart()+"; if it goes on, see its log")
	default:
		j.problem(CheckContainerd, c.Socket, fmt.Sprintf("containerd cannot be reached: %v", c.Err), "no container can be started", j.restart()+", or say where its socket is with --cri-socket")
	}
	switch {
	case c.FileErr == nil || j.isDenied(c.FileErr, c.ConfigPath):
	default:
		j.problem(CheckFile, c.ConfigPath, c.FileErr.Error(), "containerd does not start with it the next time", "mend it in the place that is named, or say with --config which file containerd reads")
	}
	for _, bad := range c.BadImports {
		j.problem(CheckFile, c.ConfigPath, bad, "containerd does not start with it the next time", "mend that file, or take it out of imports")
	}
	if !j.served(ServedByShim) {
		return // What is imported has other runtime handlers, and the plugin needs none.
	}
	for _, override := range c.Overrides {
		j.problem(CheckFile, c.ConfigPath, override, "what 'dxctl runtime configure' writes has no effect", "move that table to "+c.ConfigPath)
	}
}

func (j *judge) version() {
	j.looked(CheckVersion)
	major, minor, ok := numbers(j.Containerd.Version)
	older := func(thanMinor int) bool { return major < 1 || major == 1 && minor < thanMinor }
	switch {
	case !ok:
		j.unknown(CheckVersion, j.Containerd.Version, fmt.Sprintf("containerd says that it is version %q, which is none", j.Containerd.Version), "1.6 and newer are known to work with our shim, 1.7 and newer with our NRI plugin", "see 'containerd --version'")
	case older(6):
		j.problem(CheckVersion, j.Containerd.Version, "containerd "+j.Containerd.Version+" is older than 1.6", "it is not known to work with our shim", "install containerd 1.7 or newer")
	case older(7) && j.OS == "windows" && j.served(ServedByKubelet):
		j.problem(CheckVersion, j.Containerd.Version, "containerd "+j.Containerd.Version+" knows no devices of Windows that the kubelet tells it", "with injection: kubelet no container gets its GPU", "install containerd 1.7 or newer")
	case older(7) && j.served(ServedByNRI):
		j.problem(CheckVersion, j.Containerd.Version, "containerd "+j.Containerd.Version+" has no NRI", "our plugin is never asked what a container gets",
			"install containerd 1.7 or newer, or have the shim serve pods: 'dxctl runtime configure --restart', and directx-advertiser --served-by shim")
	case j.OS == "linux" && major >= 2 && j.verdict.Role == RoleKubernetes && j.served(ServedByShim) && !j.served(ServedByNRI) && !j.served(ServedByKubelet):
		j.problem(CheckVersion, j.Containerd.Version, "containerd "+j.Containerd.Version+" starts a pod's containers on Linux by its sandbox's shim, and ours is not asked", "pods that hold a GPU get none, and are not started",
			"turn NRI on ('dxctl runtime configure --no-shim --restart'), and run directx-nri and directx-advertiser --served-by nri")
	}
}

func (j *judge) shim() {
	c := j.Containerd
	if c.FileErr == nil && j.verdict.Role == RoleKubernetes {
		j.handlers()
	}
	j.looked(CheckShim, CheckShimVersion, CheckRealShim)
	// One that is not there for ctr and nerdctl is no loss where pods are served
	// by runtime_path.
	var used []Shim
	for _, s := range j.Shims {
		if len(s.Handlers) == 0 && j.verdict.Role == RoleKubernetes {
			continue
		}
		j.oneShim(s)
		used = append(used, s)
	}
	if j.has(CheckShim, CheckConfig) {
		return
	}
	for _, s := range used {
		if s.RealErr != nil && !j.has(CheckRealShim) {
			j.problem(CheckRealShim, s.Path, s.RealErr.Error(), "our shim hands over to the real one, and without it no container starts that goes through ours",
				"install it beside containerd, or name it in "+j.Config.Path+" as shim.runtime")
		}
	}
}

func (j *judge) handlers() {
	c := j.Containerd
	j.looked(CheckHandlers, CheckAnnotations)
	loaded := map[string]crihandlers.Handler{}
	for _, h := range c.Loaded {
		loaded[h.Name] = h
	}
	var silent, stale []string
	routed := 0
	for _, h := range c.File.Handlers {
		if h.Ours() {
			routed++
			if !h.PassesAnnotations() {
				silent = append(silent, h.Name)
			}
		}
		// What neither has by us is somebody else's business.
		now := loaded[h.Name]
		if (h.Ours() || now.Ours()) && now.RuntimePath != h.RuntimePath {
			stale = append(stale, h.Name)
		}
	}
	for _, h := range c.Loaded {
		if h.Ours() && !slices.ContainsFunc(c.File.Handlers, func(in containerdconfig.Handler) bool { return in.Name == h.Name }) {
			stale = append(stale, h.Name)
		}
	}
	if len(silent) > 0 {
		j.problem(CheckAnnotations, strings.Join(silent, ", "), fmt.Sprintf("runtime handler %s does not hand on %s", strings.Join(silent, ", "), containerdconfig.AnnotationPattern),
			"the shim does not see the annotations of the advertiser and of pods", "run 'dxctl runtime configure --restart'")
	}
	if c.Err == nil {
		j.looked(CheckLoaded)
		if len(stale) > 0 {
			j.problem(CheckLoaded, strings.Join(stale, ", "), fmt.Sprintf("runtime handler %s is not in the running containerd as %s has it: containerd has not loaded it so", strings.Join(stale, ", "), c.ConfigPath),
				"containers go by what was loaded, until containerd is restarted", j.restart()+"; where it reads another file, name that with --config")
			return
		}
	}
	if routed == 0 {
		j.problem(CheckHandlers, c.ConfigPath, "no runtime handler goes through our shim", "pods that hold a GPU get none, and are not started", crihandlers.Fix)
	}
}

func (j *judge) oneShim(s Shim) {
	whose := "ctr and nerdctl"
	if len(s.Handlers) > 0 {
		whose = "the runtime handler " + strings.Join(s.Handlers, ", ")
	}
	const why = "containers that go through it do not start"
	switch {
	case s.Err == nil:
		if j.Version != "" && s.Version != j.Version {
			j.problem(CheckShimVersion, s.Path, fmt.Sprintf("the shim is of version %s, and this is dxctl %s", cmp.Or(s.Version, "that it does not tell"), j.Version),
				"the node's programs are meant to be of one version: what one writes the other may not read", "run 'dxctl runtime install' of the version that is wanted")
		}
	case j.isDenied(s.Err, s.Path):
	case errors.Is(s.Err, fs.ErrNotExist) && len(s.Handlers) == 0:
		j.problem(CheckShim, s.Path, "the shim is not where containerd looks for it: beside containerd, or on its PATH", "ctr and nerdctl cannot run containers by io.containerd.directx.v1", "run 'dxctl runtime install'")
	case errors.Is(s.Err, fs.ErrNotExist):
		j.problem(CheckShim, s.Path, "the shim of "+whose+" is not there", "containerd can start no container of that handler", "run 'dxctl runtime install', or where it is meant to be gone 'dxctl runtime unconfigure --restart'")
	case errors.Is(s.Err, trusted.ErrUntrusted):
		j.problem(CheckPermissions, s.Path, s.Err.Error(), "containerd runs the shim as the system, and whoever can write it becomes the system", fileFix(j.OS, s.Path))
	case errors.Is(s.Err, context.DeadlineExceeded):
		j.problem(CheckShim, s.Path, "the shim does not answer to --version", why, "run '"+s.Path+" --self-test', and install it anew with 'dxctl runtime install'")
	default:
		j.problem(CheckShim, s.Path, fmt.Sprintf("the shim of %s does not work: %v", whose, s.Err), why, "install it anew with 'dxctl runtime install', which tests it first")
	}
}

func (j *judge) nri() {
	n := j.NRI
	// An imported file may have turned NRI on or off.
	isOff := j.Containerd.FileErr == nil && !j.Containerd.File.NRI && len(j.Containerd.Overrides) == 0
	if j.has(CheckContainerd, CheckVersion, CheckFile) || j.Containerd.Err != nil {
		return
	}
	j.looked(CheckNRI, CheckPlugin)
	if j.taken(programPlugin) && errors.Is(n.PluginErr, readiness.ErrNotRunning) {
		return // It cannot start, which is told.
	}
	const why = "pods that hold a GPU are not started as long as our plugin is not registered"
	switch {
	case n.PluginErr == nil && isOff:
		j.problem(CheckNRI, j.Containerd.ConfigPath, "NRI is on in the running containerd, and off in "+j.Containerd.ConfigPath, "after containerd's next restart no pod gets a GPU",
			"run 'dxctl runtime configure --no-shim', or say with --config which file containerd reads")
	case n.PluginErr == nil || j.isDenied(n.PluginErr, "the NRI plugin on "+n.PluginSocket):
	case isOff:
		j.problem(CheckNRI, j.Containerd.ConfigPath, "NRI is off in containerd", "our plugin is never asked, and pods that hold a GPU are not started", "run 'dxctl runtime configure --no-shim --restart'")
	case j.isDenied(n.SocketErr, n.Socket):
	case n.SocketErr != nil:
		j.problem(CheckNRI, n.Socket, fmt.Sprintf("containerd takes no NRI plugins on %s: %v", n.Socket, n.SocketErr), why, j.restart()+"; where its socket_path is another, say so with --nri-socket, to directx-nri too")
	case errors.Is(n.PluginErr, readiness.ErrNotRunning):
		fix := "start directx-nri; see its log if it ends"
		if isRouted(j.Facts) {
			fix += ". Where directx-advertiser runs with --served-by shim: dxctl doctor --served-by shim"
		}
		j.problem(CheckPlugin, n.PluginSocket, n.PluginErr.Error(), why, fix)
	case errors.Is(n.PluginErr, readiness.ErrNotServing):
		j.problem(CheckPlugin, n.PluginSocket, n.PluginErr.Error(), why, "see the log of directx-nri; give it the --nri-socket that containerd has")
	default:
		j.problem(CheckPlugin, n.PluginSocket, n.PluginErr.Error(), why, "see the log of directx-nri, and start it again")
	}
}

func (j *judge) kubelet() {
	k := j.Kubelet
	j.looked(CheckKubelet)
	switch {
	case j.isDenied(k.FolderErr, k.Folder) || j.isDenied(k.SocketErr, k.Folder):
		return
	case k.FolderErr != nil:
		j.problem(CheckKubelet, k.Folder, fmt.Sprintf("the kubelet's folder for device plugins cannot be used: %v", k.FolderErr), "no GPU can be offered to the cluster", "start the kubelet, or say --role standalone where there is none")
		return
	case k.SocketErr != nil:
		j.problem(CheckKubelet, k.Folder, fmt.Sprintf("the kubelet takes no device plugins in %s: %v", k.Folder, k.SocketErr), "no GPU can be offered to the cluster", "start the kubelet; where this node has none any more, say --role standalone")
	}
	if j.Config.Err != nil {
		return // It is not known which resources there are to be.
	}
	j.advertiser()
	if !j.has(CheckKubelet, CheckAdvertiser, CheckMetrics) {
		j.registration()
	}
}

func (j *judge) advertiser() {
	k := j.Kubelet
	j.looked(CheckAdvertiser)
	var errs []error
	var silent []string
	for _, resource := range slices.Sorted(maps.Keys(k.Advertiser)) {
		if err := k.Advertiser[resource]; err != nil && !j.isDenied(err, "directx-advertiser in "+k.Folder) {
			errs, silent = append(errs, err), append(silent, resource)
		}
	}
	if len(errs) > 0 && !j.taken(programAdvertiser) {
		j.problem(CheckAdvertiser, strings.Join(silent, ", "), fmt.Sprintf("directx-advertiser does not answer in %s: %v", k.Folder, errs[0]), "the kubelet is offered no GPU, and pods that ask for one stay pending",
			"start directx-advertiser; see its log if it ends")
	}
}

func (j *judge) registration() {
	k := j.Kubelet
	j.looked(CheckPodResources)
	switch {
	case k.PodResourcesErr == nil:
	case j.isDenied(k.PodResourcesErr, k.PodResources):
		return
	case errors.Is(k.PodResourcesErr, errors.ErrUnsupported):
		return // An old kubelet, which does not tell.
	default:
		j.problem(CheckPodResources, k.PodResources, fmt.Sprintf("the kubelet does not tell what it hands out: %v", k.PodResourcesErr), "GPUs of pods that are gone stay taken, and it is not known whether GPUs are registered",
			"say where its PodResources socket is with --pod-resources-socket, to directx-advertiser too")
		return
	}
	j.looked(CheckRegistration)
	// Nothing is offered by design where containers would not get it.
	if j.has(CheckDevices, CheckInventory) && len(j.GPUs.List) == 0 || j.has(CheckHandlers, CheckLoaded, CheckShim, CheckContainerd) && !j.served(ServedByNRI) && !j.served(ServedByKubelet) {
		return
	}
	missing := map[string][]string{}
	whole := map[string]bool{}
	for _, d := range j.GPUs.List {
		if d.Kind() == discovery.KindNone || !d.Health.OK() {
			continue
		}
		resource := j.resourceOf(d)
		if resource == "" {
			continue
		}
		if replicas(k.Allocatable[resource], d.InstanceID) == 0 {
			missing[resource] = append(missing[resource], d.Name())
		} else {
			whole[resource] = true
		}
	}
	for _, resource := range slices.Sorted(maps.Keys(missing)) {
		problem := "the kubelet does not offer " + resource
		if whole[resource] {
			problem = fmt.Sprintf("the kubelet offers %s without GPU %s", resource, few(missing[resource]))
		}
		j.problem(CheckRegistration, resource, problem, "pods that ask for it stay pending, or share fewer GPUs than there are",
			"see the log of directx-advertiser, and whether it runs with the same --inventory")
	}
}

// resourceOf returns the resource that offers d, "" for none.
func (j *judge) resourceOf(d GPU) string {
	if rule := resources.Assign([]discovery.Device{d.Device}, j.rules())[0].Rule; rule != nil {
		return rule.Name
	}
	return ""
}

// replicas counts those of a GPU among device IDs, which are the instance ID and
// a number behind "::".
func replicas(ids []string, instanceID string) int {
	n := 0
	for _, id := range ids {
		if i := strings.LastIndex(id, "::"); i >= 0 && strings.EqualFold(id[:i], instanceID) {
			n++
		}
	}
	return n
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

// restart says how containerd is restarted.
func (j *judge) restart() string {
	if j.OS == "windows" {
		return "in PowerShell: Restart-Service containerd"
	}
	return "run 'systemctl restart containerd'"
}

// ownFix says how a file or folder is closed to others.
func ownFix(os, path string) string {
	if os == "windows" {
		return fmt.Sprintf(`when you trust what is there, in cmd.exe: icacls "%s" /setowner *S-1-5-32-544 /t && icacls "%[1]s" /inheritance:r /grant:r *S-1-5-18:(OI)(CI)F *S-1-5-32-544:(OI)(CI)F; or else remove it`, path)
	}
	return fmt.Sprintf("when you trust what is there: chown root: %s && chmod go-w %[1]s; or else remove it", path)
}

// fileFix says how a file is closed to others. On Windows that is its folder,
// without which others put another in its place.
func fileFix(os, path string) string {
	if os == "windows" {
		path = folderOf(os, path)
	}
	return ownFix(os, path)
}

func folderOf(os, path string) string {
	if os == "windows" {
		return winpath.Dir(path)
	}
	return filepath.Dir(path)
}

func remove(os, path string) string {
	if os == "windows" {
		return `del "` + path + `"`
	}
	return "rm " + path
}

func named(d GPU) string {
	if d.Description == "" {
		return d.Name()
	}
	return d.Name() + " (" + d.Description + ")"
}

// few lists the first of many.
func few(list []string) string {
	const most = 3
	if len(list) <= most {
		return strings.Join(list, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(list[:most], ", "), len(list)-most)
}

func also(is bool, text string) string {
	if is {
		return text
	}
	return ""
}

// numbers returns the first two of a version such as "v1.7.35".
func numbers(version string) (major, minor int, ok bool) {
	_, err := fmt.Sscanf(strings.TrimPrefix(version, "v"), "%d.%d", &major, &minor)
	return major, minor, err == nil
}

// Result is what a verdict comes to.
type Result string

// The results.
const (
	Sound    Result = "sound"
	Findings Result = "findings"
	NotKnown Result = "unknown"
)

// Result returns what the verdict comes to: what is wrong counts more than what
// is not known.
func (v Verdict) Result() Result {
	switch {
	case len(v.Findings) == 0:
		return Sound
	case slices.ContainsFunc(v.Findings, func(f Finding) bool { return f.Severity == Problem }):
		return Findings
	}
	return NotKnown
}
