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
	"time"

	"directx-nri/discovery"
	"directx-nri/internal/containerdconfig"
	"directx-nri/internal/durable"
	"directx-nri/internal/policy"
	"directx-nri/internal/readiness"
	"directx-nri/internal/winpath"
)

// The names of the checks.
const (
	CheckSetup        = "setup"
	CheckConfig       = "config"
	CheckInventory    = "inventory"
	CheckDevices      = "devices"
	CheckFiles        = "files"
	CheckResources    = "resources"
	CheckHCS          = "hcs"
	CheckContainerd   = "containerd"
	CheckVersion      = "containerd-version"
	CheckFile         = "containerd-config"
	CheckHandlers     = "handlers"
	CheckLoaded       = "loaded"
	CheckShim         = "shim"
	CheckShimVersion  = "shim-version"
	CheckRealShim     = "real-shim"
	CheckNRI          = "nri"
	CheckPlugin       = "plugin"
	CheckKubelet      = "kubelet"
	CheckAdvertiser   = "advertiser"
	CheckRegistration = "registration"
	CheckRecords      = "records"
	CheckPermissions  = "permissions"
	CheckLeftovers    = "leftovers"
	CheckAccess       = "access"
)

// Checks returns the names of all checks, and what each requires.
func Checks() []struct{ Name, Requires string } {
	return []struct{ Name, Requires string }{
		{CheckSetup, "directx-nri is set up on the node"},
		{CheckConfig, "the configuration is valid and in force"},
		{CheckInventory, "the GPUs can be listed"},
		{CheckDevices, "the node has GPUs, and they are healthy"},
		{CheckFiles, "the files and device nodes of containers exist"},
		{CheckResources, "the configured resources match GPUs of the node"},
		{CheckHCS, "Windows can assign single GPUs to containers, if configured"},
		{CheckContainerd, "containerd answers"},
		{CheckVersion, "containerd is recent enough"},
		{CheckFile, "containerd's configuration is valid"},
		{CheckHandlers, "runtime handlers use the shim and pass its annotations"},
		{CheckLoaded, "the running containerd has loaded its configuration"},
		{CheckShim, "the runtime shim can be run"},
		{CheckShimVersion, "the shim has dxctl's version"},
		{CheckRealShim, "the real shim can be found"},
		{CheckNRI, "NRI is enabled"},
		{CheckPlugin, "the NRI plugin is registered"},
		{CheckKubelet, "the kubelet accepts device plugins"},
		{CheckAdvertiser, "directx-advertiser answers"},
		{CheckRegistration, "the kubelet offers the GPUs"},
		{CheckRecords, "the allocation records can be used"},
		{CheckPermissions, "only administrators can write the node's files"},
		{CheckLeftovers, "no command was interrupted"},
		{CheckAccess, "dxctl may read everything"},
	}
}

// examination collects findings.
type examination struct {
	Facts
	verdict Verdict
	// denied are what could not be read for lack of permission.
	denied []string
}

// Examine returns what is wrong with a node: one finding for each cause, and none
// for what follows from another.
func Examine(f Facts) Verdict {
	e := &examination{Facts: f, verdict: Verdict{Role: f.role(), ServedBy: f.servedBy(), Findings: []Finding{}}}
	kubernetes := e.verdict.Role == RoleKubernetes
	e.setup()
	e.config()
	e.inventory()
	e.resources()
	e.windows()
	e.containerd()
	if e.served(ServedByShim) {
		if kubernetes {
			e.handlers()
		}
		e.shims()
	}
	if e.served(ServedByNRI) {
		e.nri()
	}
	if kubernetes && len(e.verdict.ServedBy) > 0 {
		e.kubelet()
	}
	e.records()
	e.permissions()
	e.leftovers()
	if len(e.denied) > 0 {
		account := "root"
		if f.OS == "windows" {
			account = "an administrator"
		}
		e.unknown(CheckAccess, "", "permission denied: "+strings.Join(e.denied, ", "), "problems there are not detected", "run dxctl as "+account)
	}
	return e.verdict
}

// RuntimeFindings returns the problems of containerd's runtime handlers and of the
// shims that they use.
func RuntimeFindings(f Facts) []Finding {
	f.Version = "" // A shim of another version works.
	e := &examination{Facts: f, verdict: Verdict{Role: RoleKubernetes, ServedBy: []ServedBy{ServedByShim}}}
	for _, override := range f.Containerd.Overrides {
		e.overridden(override)
	}
	e.handlers()
	for _, s := range f.Shims {
		if len(s.Handlers) > 0 {
			e.shim(s)
		}
	}
	return e.verdict.Findings
}

// role returns what the node is used for. The kubelet's directory stays if the
// kubelet is stopped.
func (f Facts) role() Role {
	switch {
	case f.Role != RoleAuto && f.Role != "":
		return f.Role
	case errors.Is(f.Kubelet.DirErr, fs.ErrNotExist):
		return RoleStandalone
	}
	return RoleKubernetes
}

// servedBy returns the components that are expected to add GPUs to containers.
func (f Facts) servedBy() []ServedBy {
	p, kubernetes := f.Config.Policy, f.role() == RoleKubernetes
	var list []ServedBy
	switch {
	case f.ServedBy != ServedByAuto && f.ServedBy != "":
		return []ServedBy{f.ServedBy}
	case p.Injection == policy.InjectByKubelet && kubernetes:
		list = append(list, ServedByKubelet)
		if f.isRouted() {
			list = append(list, ServedByShim)
		}
		return list
	case f.OS != "windows" && p.ServedBy == policy.ServedByShim && kubernetes:
		return []ServedBy{ServedByShim}
	}
	// NRI may be enabled for other plugins; containerd 2 enables it by default.
	plugin := f.NRI.PluginErr == nil || f.NRI.Started || f.Containerd.FileErr == nil && f.Containerd.File.NRI && f.hasTraces()
	if f.OS != "windows" && kubernetes && plugin {
		list = append(list, ServedByNRI)
	}
	if f.isRouted() || (f.OS == "windows" || !kubernetes) && f.isInstalled() {
		list = append(list, ServedByShim)
	}
	return list
}

// isRouted reports whether a runtime handler uses our shim.
func (f Facts) isRouted() bool {
	return slices.ContainsFunc(slices.Concat(f.Containerd.File.Handlers, f.Containerd.Loaded), containerdconfig.Handler.Ours)
}

// isInstalled reports whether there is a shim, working or not, or a configuration.
func (f Facts) isInstalled() bool {
	return f.Config.Applied || slices.ContainsFunc(f.Shims, func(s Shim) bool { return !errors.Is(s.Err, fs.ErrNotExist) })
}

// hasTraces reports whether directx-nri has been on this node.
func (f Facts) hasTraces() bool {
	for _, err := range f.Kubelet.Advertiser {
		if err == nil {
			return true
		}
	}
	return f.isInstalled() || slices.ContainsFunc(f.Access, func(a Access) bool { return a.Dir })
}

// byClass reports whether Windows containers are assigned all GPUs, by their class.
func (f Facts) byClass() bool {
	switch {
	case f.OS != "windows" || f.Config.Policy.Assignment == policy.AssignByPath:
		return false
	case f.Config.Policy.Assignment == policy.AssignByClass:
		return true
	}
	return f.Windows != nil && !f.Windows.Assignment().Individual
}

func (e *examination) served(by ServedBy) bool { return slices.Contains(e.verdict.ServedBy, by) }

// performed adds to the list of performed checks.
func (e *examination) performed(checks ...string) {
	for _, check := range checks {
		if !slices.Contains(e.verdict.Checks, check) {
			e.verdict.Checks = append(e.verdict.Checks, check)
		}
	}
}

// has reports whether one of the checks has a finding.
func (e *examination) has(checks ...string) bool {
	return slices.ContainsFunc(e.verdict.Findings, func(f Finding) bool { return slices.Contains(checks, f.Check) })
}

func (e *examination) problem(check, object, problem, why, fix string) {
	e.add(Finding{check, Problem, object, problem, why, fix})
}

func (e *examination) unknown(check, object, problem, why, fix string) {
	e.add(Finding{check, Unknown, object, problem, why, fix})
}

func (e *examination) add(f Finding) {
	e.performed(f.Check)
	for _, text := range []*string{&f.Object, &f.Problem, &f.Why, &f.Fix} {
		*text = strings.Join(strings.Fields(*text), " ")
	}
	e.verdict.Findings = append(e.verdict.Findings, f)
}

// note adds something that is not a problem and may explain one.
func (e *examination) note(format string, args ...any) {
	e.verdict.Notes = append(e.verdict.Notes, strings.Join(strings.Fields(fmt.Sprintf(format, args...)), " "))
}

// isDenied reports whether err is a lack of permission, which is reported once.
func (e *examination) isDenied(err error, what string) bool {
	if !errors.Is(err, fs.ErrPermission) {
		return false
	}
	if !slices.Contains(e.denied, what) {
		e.denied = append(e.denied, what)
	}
	return true
}

func (e *examination) setup() {
	unreadable := slices.ContainsFunc([]error{e.Containerd.Err, e.Containerd.FileErr, e.NRI.PluginErr, e.Config.Err, e.Kubelet.DirErr},
		func(err error) bool { return errors.Is(err, fs.ErrPermission) })
	if len(e.verdict.ServedBy) > 0 || unreadable {
		return
	}
	fix := "run 'dxctl runtime install', then 'dxctl runtime configure --restart'"
	if e.verdict.Role == RoleStandalone {
		fix = "run 'dxctl runtime install'; on a Kubernetes node, then run 'dxctl runtime configure --restart'"
	}
	e.problem(CheckSetup, "", "directx-nri is not set up on this node: there is no NRI plugin, no runtime handler that uses the shim, and no shim", "no container can have a GPU", fix)
}

func (e *examination) config() {
	c := e.Config
	e.performed(CheckConfig)
	switch {
	case e.isDenied(c.Err, "the node policy"):
	case c.Err != nil:
		e.problem(CheckConfig, c.Path, c.Err.Error(), "containers that request a GPU do not start", "restart directx-advertiser, or run 'dxctl config apply', which writes the policy again")
	case c.Invalid != nil && !e.isDenied(c.Invalid, c.Path):
		e.problem(CheckConfig, c.Path, c.Invalid.Error(), "the configuration that was compiled last stays in force", "correct the file; 'dxctl config check' checks it")
	case len(c.Stale) > 0 && c.Invalid == nil:
		e.problem(CheckConfig, c.Path, strings.Join(c.Stale, "; "), "the change has no effect",
			"start directx-advertiser, or run 'dxctl config apply' on a node without it")
	}
	if e.served(ServedByKubelet) {
		limits := ""
		if e.OS == "windows" && !e.byClass() {
			limits = ", and a container can have one GPU only"
		}
		e.note("injection: kubelet is configured: there are no extra mounts and no GPUs for ctr and nerdctl, driver files are those of the time of admission, and a container whose GPU is gone still starts%s; see docs/kubelet-injection.md", limits)
	}
}

func (e *examination) inventory() {
	g := e.GPUs
	e.performed(CheckInventory, CheckDevices, CheckFiles)
	source := cmp.Or(g.Inventory, "the inventory file")
	switch {
	case g.Err == nil:
	case e.Config.Err != nil || e.has(CheckSetup) || e.isDenied(g.Err, cmp.Or(g.Inventory, "the GPUs of this node")):
		return
	case g.Inventory == "" && e.OS != "windows":
		e.problem(CheckInventory, e.Config.Path, "no inventory is configured, and GPUs are discovered on Windows only", "the node offers no GPU, and containers that request one do not start",
			"set inventory in "+e.Config.Path+", or run 'dxctl config apply --inventory FILE'")
		return
	default:
		e.problem(CheckInventory, g.Inventory, g.Err.Error(), "the node offers no GPU, and containers that request one do not start", "run 'dxctl devices' for the cause")
		return
	}
	offerable := slices.DeleteFunc(slices.Clone(g.List), func(d GPU) bool { return d.Kind() == discovery.KindNone })
	if len(offerable) == 0 {
		fix := "install the GPU's driver; 'dxctl devices' lists the devices of the node"
		if g.Inventory != "" {
			fix = "describe the GPUs in " + g.Inventory
		}
		e.problem(CheckDevices, "", "the node has no GPU that a container can have", "there is nothing to offer", fix)
	}
	missing := map[string]bool{} // GPUs with the same driver have the same files.
	for _, d := range offerable {
		if e.byClass() {
			d.Device = d.ByClass()
		}
		e.device(d, source)
		if key := strings.Join(d.Missing, "\n"); key != "" && !missing[key] {
			missing[key] = true
			e.problem(CheckFiles, d.Name(), fmt.Sprintf("files of GPU %s are not on this node: %s", d.Name(), few(d.Missing)),
				"containers start without these driver files, and do not start without device nodes", "reinstall the GPU's driver, or remove the files from "+source)
		}
		if d.FilesErr != nil && !e.isDenied(d.FilesErr, "the driver files of "+d.Name()) {
			e.unknown(CheckFiles, d.Name(), fmt.Sprintf("the files of GPU %s cannot be looked up: %v", d.Name(), d.FilesErr), "missing files are left out of containers", "check the disk")
		}
	}
}

func (e *examination) device(d GPU, source string) {
	name := d.Name()
	if d.Description != "" {
		name += " (" + d.Description + ")"
	}
	switch {
	case !d.Health.OK():
		fix := "fix the device, or its description in " + source
		if e.OS == "windows" {
			fix = "enable the device in Device Manager, or install its driver"
		}
		e.problem(CheckDevices, d.Name(), fmt.Sprintf("GPU %s is unhealthy: %s", name, d.Health), "it is offered as unhealthy, and no container gets it", fix)
	case e.OS == "windows" && d.LocationPath == "" && !e.byClass():
		e.problem(CheckDevices, d.Name(), fmt.Sprintf("GPU %s has no location path", name), "Windows containers are assigned GPUs by location path", "add its location path to "+source)
	case e.OS == "windows" && len(d.System32) == 0:
		e.problem(CheckFiles, d.Name(), fmt.Sprintf("the driver of %s lists no runtime files for containers", name), "containers get the GPU without driver libraries", "install a driver that supports GPU-PV or containers")
	case e.OS != "windows" && len(d.DeviceNodes) == 0:
		e.problem(CheckFiles, d.Name(), fmt.Sprintf("GPU %s has no device node", name), "programs in a Linux container cannot reach it", "add linux: {deviceNodes: [...]} to it in "+source)
	}
}

func (e *examination) resources() {
	if e.Config.Err != nil || e.GPUs.Err != nil {
		return
	}
	e.performed(CheckResources)
	var without []string
	offered := false
	for _, d := range e.GPUs.List {
		switch {
		case d.Resource != "":
			offered = true
		case d.Kind() != discovery.KindNone:
			without = append(without, d.Name())
		}
	}
	switch {
	case len(without) > 0 && !offered:
		e.problem(CheckResources, few(without), "no configured resource matches a GPU of this node", "the node offers no GPU", "compare 'dxctl devices -o wide' with resources in "+e.Config.Path)
	case len(without) > 0:
		e.note("no configured resource matches GPU %s, which is not offered", few(without))
	}
}

func (e *examination) windows() {
	if e.Windows == nil {
		return
	}
	e.performed(CheckHCS)
	a, err, name := e.Windows.Assignment(), e.Windows.SchemasErr, e.Windows.Windows.String()
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		e.problem(CheckHCS, "vmcompute", fmt.Sprintf("the Host Compute Service does not answer: %v", err), "no container can be started or stopped",
			"in PowerShell: Restart-Service -Force vmcompute; if that does not help, restart the node")
	case !a.Individual && e.Config.Policy.Assignment == policy.AssignByPath:
		e.problem(CheckHCS, name, a.Reason, "containers with a GPU do not start, because assignmentMode is location-path", "set assignmentMode: auto in "+e.Config.Path+", or use Windows Server 2022 or later")
	case !a.Individual:
		e.note("%s", a.Reason)
	case errors.Is(err, errors.ErrUnsupported):
		e.problem(CheckHCS, name, fmt.Sprintf("the Host Compute Service is not available: %v", err), "no container can be started", "in PowerShell: Install-WindowsFeature Containers; then restart the node")
	case err != nil && !e.isDenied(err, "the Host Compute Service"):
		e.unknown(CheckHCS, name, fmt.Sprintf("the Host Compute Service does not report its schema: %v", err), a.Reason, "run 'dxctl capabilities' as an administrator")
	}
}

// restart returns how containerd is restarted.
func (e *examination) restart() string {
	if e.OS == "windows" {
		return "in PowerShell: Restart-Service containerd"
	}
	return "run 'systemctl restart containerd'"
}

func (e *examination) containerd() {
	c := e.Containerd
	e.performed(CheckContainerd, CheckFile)
	switch {
	case c.Err == nil:
		e.version()
	case e.isDenied(c.Err, "containerd on "+c.Socket) || c.WithoutCRI && e.verdict.Role == RoleStandalone:
	case c.WithoutCRI:
		e.problem(CheckContainerd, c.Socket, "containerd runs without its CRI plugin", "the kubelet cannot start pods", "remove cri from disabled_plugins in "+c.ConfigPath+", and restart containerd")
	case errors.Is(c.Err, context.DeadlineExceeded):
		e.problem(CheckContainerd, c.Socket, fmt.Sprintf("containerd does not answer: %v", c.Err), "no container can be started or stopped", e.restart()+"; if that does not help, see its log")
	default:
		e.problem(CheckContainerd, c.Socket, fmt.Sprintf("containerd cannot be reached: %v", c.Err), "no container can be started", e.restart()+", or set --cri-socket")
	}
	if c.FileErr != nil && !e.isDenied(c.FileErr, c.ConfigPath) {
		e.problem(CheckFile, c.ConfigPath, c.FileErr.Error(), "containerd does not start again", "correct the file, or set --config if containerd reads another file")
	}
	for _, bad := range c.BadImports {
		e.problem(CheckFile, c.ConfigPath, bad, "containerd does not start again", "correct that file, or remove it from imports")
	}
	if e.served(ServedByShim) { // The NRI plugin does not depend on runtime handlers.
		for _, override := range c.Overrides {
			e.overridden(override)
		}
	}
}

func (e *examination) overridden(override string) {
	e.problem(CheckFile, e.Containerd.ConfigPath, override, "the settings of 'dxctl runtime configure' have no effect", "move that table to "+e.Containerd.ConfigPath)
}

func (e *examination) version() {
	e.performed(CheckVersion)
	version := e.Containerd.Version
	var major, minor int
	_, err := fmt.Sscanf(strings.TrimPrefix(version, "v"), "%d.%d", &major, &minor)
	switch {
	case err != nil:
		e.unknown(CheckVersion, version, fmt.Sprintf("containerd's version %q is not a version number", version), "containerd 1.7 and later are supported", "see 'containerd --version'")
	case major < 1 || major == 1 && minor < 7:
		e.problem(CheckVersion, version, "containerd "+version+" is older than 1.7", "it is not supported", "install containerd 1.7 or later")
	case e.OS == "linux" && major >= 2 && e.verdict.Role == RoleKubernetes && slices.Equal(e.verdict.ServedBy, []ServedBy{ServedByShim}):
		e.problem(CheckVersion, version, "containerd "+version+" on Linux runs the shim for a pod's sandbox only, not for its containers", "pods with a GPU do not start",
			"use the NRI plugin: run 'dxctl runtime configure --no-shim --restart' and directx-nri, and set servedBy: nri")
	}
}

func (e *examination) handlers() {
	c := e.Containerd
	if c.FileErr != nil {
		return
	}
	e.performed(CheckHandlers)
	loaded := map[string]containerdconfig.Handler{}
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
		// Handlers that never used our shim are not our concern.
		now := loaded[h.Name]
		delete(loaded, h.Name)
		if (h.Ours() || now.Ours()) && now.RuntimePath != h.RuntimePath {
			stale = append(stale, h.Name)
		}
	}
	for name, h := range loaded {
		if h.Ours() {
			stale = append(stale, name)
		}
	}
	slices.Sort(stale)
	if len(silent) > 0 {
		names := strings.Join(silent, ", ")
		e.problem(CheckHandlers, names, fmt.Sprintf("runtime handler %s does not pass on %s", names, containerdconfig.AnnotationPattern), "the shim does not get the annotations of the advertiser and of pods", containerdconfig.Fix)
	}
	if c.Err == nil {
		e.performed(CheckLoaded)
		if len(stale) > 0 {
			names := strings.Join(stale, ", ")
			e.problem(CheckLoaded, names, fmt.Sprintf("the running containerd has not loaded runtime handler %s as %s configures it", names, c.ConfigPath),
				"the configuration has no effect until containerd is restarted", e.restart()+"; set --config if containerd reads another file")
			return
		}
	}
	if routed == 0 && e.Leftovers.Failed == "" {
		e.problem(CheckHandlers, c.ConfigPath, "no runtime handler uses our shim", "pods with a GPU do not start", containerdconfig.Fix)
	}
}

func (e *examination) shims() {
	e.performed(CheckShim, CheckShimVersion, CheckRealShim)
	for _, s := range e.Shims {
		// Pods are served by runtime_path; the shim that ctr finds by name is optional.
		if len(s.Handlers) == 0 && e.verdict.Role == RoleKubernetes {
			continue
		}
		e.shim(s)
		if s.Err == nil && s.RealErr != nil && !e.has(CheckRealShim, CheckConfig) {
			e.problem(CheckRealShim, s.Path, s.RealErr.Error(), "no container that uses our shim starts", "install the real shim beside containerd, or set shim.runtime in "+e.Config.Path)
		}
	}
}

func (e *examination) shim(s Shim) {
	user := "ctr and nerdctl"
	if len(s.Handlers) > 0 {
		user = "runtime handler " + strings.Join(s.Handlers, ", ")
	}
	why := "containers of " + user + " do not start"
	switch {
	case s.Err == nil:
		if e.Version != "" && s.Version != e.Version {
			e.problem(CheckShimVersion, s.Path, fmt.Sprintf("the shim has version %s, and dxctl has version %s", cmp.Or(s.Version, "unknown"), e.Version),
				"programs of different versions may not read each other's files", "run 'dxctl runtime install' of the wanted version")
		}
	case e.isDenied(s.Err, s.Path):
	case errors.Is(s.Err, fs.ErrNotExist) && len(s.Handlers) == 0:
		e.problem(CheckShim, s.Path, "the shim is neither beside containerd nor on its PATH", why, "run 'dxctl runtime install'")
	case errors.Is(s.Err, fs.ErrNotExist):
		e.problem(CheckShim, s.Path, "the shim of "+user+" does not exist", why, "run 'dxctl runtime install', or 'dxctl runtime unconfigure --restart' if it was removed on purpose")
	case errors.Is(s.Err, durable.ErrUntrusted):
		e.problem(CheckPermissions, s.Path, s.Err.Error(), "containerd runs the shim with all privileges, so users who can write it have them too", e.protect(s.Path, false))
	case errors.Is(s.Err, context.DeadlineExceeded):
		e.problem(CheckShim, s.Path, "the shim does not answer to --version", why, "run '"+s.Path+" --self-test', and install it again with 'dxctl runtime install'")
	default:
		e.problem(CheckShim, s.Path, fmt.Sprintf("the shim of %s does not work: %v", user, s.Err), why, "install it again with 'dxctl runtime install', which tests it")
	}
}

func (e *examination) nri() {
	n, c := e.NRI, e.Containerd
	if e.has(CheckContainerd, CheckVersion, CheckFile) || c.Err != nil {
		return
	}
	e.performed(CheckNRI, CheckPlugin)
	isOff := c.FileErr == nil && !c.File.NRI && len(c.Overrides) == 0 // An import may enable it.
	const why = "pods with a GPU do not start while the NRI plugin is not registered"
	switch {
	case n.PluginErr == nil && isOff:
		e.problem(CheckNRI, c.ConfigPath, "NRI is enabled in the running containerd and disabled in "+c.ConfigPath, "pods with a GPU do not start after the next restart of containerd",
			"run 'dxctl runtime configure --no-shim', or set --config if containerd reads another file")
	case n.PluginErr == nil || e.isDenied(n.PluginErr, "the NRI plugin on "+n.PluginSocket):
	case isOff && e.Leftovers.Failed != "":
	case isOff:
		e.problem(CheckNRI, c.ConfigPath, "NRI is disabled in containerd", why, "run 'dxctl runtime configure --no-shim --restart'")
	case e.isDenied(n.SocketErr, n.Socket):
	case n.SocketErr != nil:
		e.problem(CheckNRI, n.Socket, fmt.Sprintf("containerd does not accept NRI plugins on %s: %v", n.Socket, n.SocketErr), why, e.restart()+"; if its socket_path differs, set --nri-socket of directx-nri and dxctl")
	case errors.Is(n.PluginErr, readiness.ErrNotRunning):
		e.problem(CheckPlugin, n.PluginSocket, n.PluginErr.Error(), why, "start directx-nri, or set servedBy: shim if the shim serves pods")
	default:
		e.problem(CheckPlugin, n.PluginSocket, n.PluginErr.Error(), why, "see the log of directx-nri, and whether its --nri-socket is containerd's")
	}
}

func (e *examination) kubelet() {
	k := e.Kubelet
	e.performed(CheckKubelet)
	switch {
	case e.isDenied(k.DirErr, k.Dir) || e.isDenied(k.SocketErr, k.Dir):
		return
	case k.DirErr != nil:
		e.problem(CheckKubelet, k.Dir, fmt.Sprintf("the kubelet's device plugin directory cannot be used: %v", k.DirErr), "the node cannot offer GPUs", "start the kubelet, or set --role standalone if there is none")
		return
	case k.SocketErr != nil:
		e.problem(CheckKubelet, k.Dir, fmt.Sprintf("the kubelet does not accept device plugins in %s: %v", k.Dir, k.SocketErr), "the node cannot offer GPUs", "start the kubelet, or set --role standalone if there is none any more")
	}
	if e.Config.Err != nil {
		return // The names of the resources are unknown.
	}
	e.performed(CheckAdvertiser)
	for _, resource := range slices.Sorted(maps.Keys(k.Advertiser)) {
		if err := k.Advertiser[resource]; err != nil && !e.isDenied(err, "directx-advertiser in "+k.Dir) && !e.has(CheckAdvertiser) {
			e.problem(CheckAdvertiser, resource, fmt.Sprintf("directx-advertiser does not answer in %s: %v", k.Dir, err), "the node offers no GPU, and pods that request one stay pending", "start directx-advertiser; if it exits, see its log")
		}
	}
	if !e.has(CheckKubelet, CheckAdvertiser) {
		e.registration()
	}
}

func (e *examination) registration() {
	k := e.Kubelet
	e.performed(CheckRegistration)
	switch {
	case k.PodResourcesErr == nil:
	case e.isDenied(k.PodResourcesErr, k.PodResources) || errors.Is(k.PodResourcesErr, errors.ErrUnsupported): // An old kubelet.
		return
	default:
		e.problem(CheckRegistration, k.PodResources, fmt.Sprintf("the kubelet's PodResources API cannot be reached: %v", k.PodResourcesErr), "GPUs of deleted pods stay allocated", "set --pod-resources-socket of directx-advertiser and dxctl")
		return
	}
	// The advertiser offers nothing that containers would not get.
	if len(e.GPUs.List) == 0 || e.has(CheckHandlers, CheckLoaded, CheckShim, CheckContainerd) && !e.served(ServedByNRI) && !e.served(ServedByKubelet) {
		return
	}
	missing, complete := map[string][]string{}, map[string]bool{}
	for _, d := range e.GPUs.List {
		if d.Resource == "" || d.Kind() == discovery.KindNone || !d.Health.OK() {
			continue
		}
		prefix := strings.ToLower(d.InstanceID) + "::"
		if slices.ContainsFunc(k.Allocatable[d.Resource], func(id string) bool { return strings.HasPrefix(strings.ToLower(id), prefix) }) {
			complete[d.Resource] = true
		} else {
			missing[d.Resource] = append(missing[d.Resource], d.Name())
		}
	}
	for _, resource := range slices.Sorted(maps.Keys(missing)) {
		problem := "the kubelet does not offer " + resource
		if complete[resource] {
			problem = fmt.Sprintf("the kubelet offers %s without GPU %s", resource, few(missing[resource]))
		}
		e.problem(CheckRegistration, resource, problem, "pods that request it stay pending, or share fewer GPUs", "see the log of directx-advertiser")
	}
}

func (e *examination) records() {
	r := e.Records
	e.performed(CheckRecords)
	const why = "a container whose record cannot be used does not start"
	switch {
	case r.Err == nil || errors.Is(r.Err, fs.ErrNotExist):
	case e.isDenied(r.Err, r.Dir):
	case errors.Is(r.Err, durable.ErrNotPrivate):
		e.problem(CheckRecords, r.Dir, r.Err.Error(), "the records cannot be trusted, so no container gets a GPU", e.protect(r.Dir, true))
	case errors.Is(r.Err, context.DeadlineExceeded):
		e.unknown(CheckRecords, r.Dir, r.Err.Error(), why, "increase --timeout; if that does not help, check the disk")
	default:
		e.problem(CheckRecords, r.Dir, r.Err.Error(), why, "check the disk")
	}
	for _, file := range r.Damaged {
		if !e.isDenied(file.Err, r.Dir) {
			e.problem(CheckRecords, file.Path, fmt.Sprintf("an allocation record cannot be used: %v", file.Err), why, "delete the pod that holds the allocation, then the file: "+e.remove(file.Path))
		}
	}
	if len(r.Orphans) > 0 {
		e.problem(CheckRecords, r.Orphans[0], "files of ended allocations were not removed: "+few(r.Orphans), "they grant nothing and take up space", "restart directx-advertiser, which removes them")
	}
	if len(r.Foreign) > 0 {
		e.problem(CheckRecords, r.Foreign[0], "files among the allocation records do not belong there: "+few(r.Foreign), "they are ignored, and logged at each start of directx-advertiser", "move them elsewhere")
	}
}

func (e *examination) permissions() {
	e.performed(CheckPermissions)
	for _, a := range e.Access {
		switch {
		case a.Err == nil || e.isDenied(a.Err, a.Path):
		case errors.Is(a.Err, durable.ErrNotPrivate) || errors.Is(a.Err, durable.ErrUntrusted):
			e.problem(CheckPermissions, a.Path, a.Err.Error(), a.Why, e.protect(a.Path, a.Dir))
		case errors.Is(a.Err, fs.ErrNotExist):
			e.problem(CheckPermissions, a.Path, a.Path+" is configured and does not exist", "pods that request a file of it do not start", "create it, or remove it from "+e.Config.Path)
		default:
			e.unknown(CheckPermissions, a.Path, a.Err.Error(), a.Why, "check the disk")
		}
	}
}

// protect returns how others are denied writing a file or directory. On Windows a
// file is protected by its directory, in which others could replace it.
func (e *examination) protect(path string, dir bool) string {
	if e.OS == "windows" {
		if !dir {
			path = winpath.Dir(path)
		}
		return fmt.Sprintf(`if you trust the content, in cmd.exe: icacls "%s" /setowner *S-1-5-32-544 /t && icacls "%[1]s" /inheritance:r /grant:r *S-1-5-18:(OI)(CI)F *S-1-5-32-544:(OI)(CI)F; otherwise remove it`, path)
	}
	if dir {
		path = filepath.Clean(path)
	}
	return fmt.Sprintf("if you trust the content: chown root: %s && chmod go-w %[1]s; otherwise remove it", path)
}

func (e *examination) remove(path string) string {
	if e.OS == "windows" {
		return `del "` + path + `"`
	}
	return "rm " + path
}

func (e *examination) leftovers() {
	l := e.Leftovers
	e.performed(CheckLeftovers)
	switch {
	case l.JournalErr != nil && e.isDenied(l.JournalErr, l.Journal):
	case l.JournalErr != nil:
		e.problem(CheckLeftovers, l.Journal, l.JournalErr.Error(), "'dxctl runtime configure' and 'unconfigure' fail", "if you do not need its content: "+e.remove(l.Journal))
	case l.Journal != "" && !l.Applied && !e.has(CheckFile):
		e.problem(CheckLeftovers, l.Journal, "containerd's configuration no longer has the changes of 'dxctl runtime configure'", "another program replaced the file", "run 'dxctl runtime configure --restart' to make them again, or 'dxctl runtime unconfigure' to forget them")
	}
	switch {
	case l.FailedErr != nil && e.isDenied(l.FailedErr, l.Failed):
	case l.FailedErr != nil:
		e.problem(CheckLeftovers, l.Failed, l.FailedErr.Error(), "'dxctl runtime configure --restart' fails", "check the disk, or "+e.remove(l.Failed))
	case l.Failed != "":
		e.problem(CheckLeftovers, l.Failed, fmt.Sprintf("containerd did not restart with the configuration of 'dxctl runtime configure' at %s: %s", l.FailedAt.UTC().Format(time.RFC3339), l.FailedCause),
			"the configuration was restored, and the same change is not tried again for an hour", "see containerd's log of that time; to try again now: "+e.remove(l.Failed)+", and run 'dxctl runtime configure --restart'")
	}
	if l.Backup != "" {
		e.problem(CheckLeftovers, l.Backup, "there is a copy of containerd's configuration without a record of the changes", "'dxctl runtime unconfigure' cannot restore the file", "compare it with "+e.Containerd.ConfigPath+", then: "+e.remove(l.Backup))
	}
	if l.Pending != "" {
		e.problem(CheckLeftovers, l.Pending, "containers were handed over to the real shim, and containerd was not restarted afterward", "the shim cannot be removed", "run 'dxctl runtime uninstall --restart' again")
	}
	if len(l.Abandoned) > 0 && !e.has(CheckShim) {
		e.problem(CheckLeftovers, l.AbandonedBy, "the shim of running containers does not exist any more: "+few(l.Abandoned), "containerd loses them when it restarts",
			"before containerd restarts, run 'dxctl runtime install', then 'dxctl runtime uninstall --restart', which hands them over")
	}
}

// few returns the first elements of a list and the number of the others.
func few(list []string) string {
	const most = 3
	if len(list) <= most {
		return strings.Join(list, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(list[:most], ", "), len(list)-most)
}
