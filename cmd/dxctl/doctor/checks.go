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
	"directx-nri/internal/winpath"
)

// The names of the checks.
const (
	CheckSetup        = "setup"             // directx-nri is set up
	CheckConfig       = "config"            // the configuration is valid and in force
	CheckInventory    = "inventory"         // the GPUs can be listed
	CheckDevices      = "devices"           // there are GPUs, and they are healthy
	CheckFiles        = "files"             // the files of containers exist
	CheckResources    = "resources"         // the configured resources match GPUs
	CheckHCS          = "hcs"               // Windows can assign GPUs as configured
	CheckContainerd   = "containerd"        // containerd answers and is recent enough
	CheckFile         = "containerd-config" // its configuration is valid
	CheckHandlers     = "handlers"          // runtime handlers use the shim
	CheckShim         = "shim"              // the runtime shim and the real shim work
	CheckNRI          = "nri"               // the NRI plugin is registered
	CheckKubelet      = "kubelet"           // the kubelet accepts device plugins
	CheckAdvertiser   = "advertiser"        // directx-advertiser answers
	CheckRegistration = "registration"      // the kubelet offers the GPUs
	CheckRecords      = "records"           // the allocation records can be used
	CheckPermissions  = "permissions"       // only administrators can write the files
	CheckLeftovers    = "leftovers"         // no command was interrupted
	CheckAccess       = "access"            // dxctl may read everything
)

// examination collects findings.
type examination struct {
	Facts
	r Report
	// denied are what could not be read for lack of permission.
	denied []string
}

// Examine returns the problems of a node: one finding for each cause, and none for
// its consequences.
func Examine(f Facts) Report {
	e := &examination{Facts: f, r: Report{Version: f.Version, OS: f.OS, Role: f.role(), ServedBy: f.servedBy(), Findings: []Finding{}}}
	kubernetes := e.r.Role == RoleKubernetes
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
	if kubernetes && len(e.r.ServedBy) > 0 {
		e.kubelet()
	}
	e.records()
	e.permissions()
	e.leftovers()
	if len(e.denied) > 0 {
		e.performed(CheckAccess)
		e.r.Findings = append(e.r.Findings, Finding{
			CheckAccess, Unknown, "", "permission denied: " + strings.Join(e.denied, ", "),
			"problems there are not detected", "run dxctl as root or an administrator",
		})
	}
	e.r.Result = result(e.r.Findings)
	return e.r
}

// RuntimeFindings returns the problems of containerd's runtime handlers and of the
// shims that they use.
func RuntimeFindings(f Facts) []Finding {
	f.Version = "" // A shim of another version works.
	e := &examination{Facts: f, r: Report{Role: RoleKubernetes, ServedBy: []ServedBy{ServedByShim}}}
	e.overrides()
	e.handlers()
	for _, s := range f.Shims {
		if len(s.Handlers) > 0 {
			e.shim(s)
		}
	}
	return e.r.Findings
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
	list := []ServedBy{}
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

func (e *examination) served(by ServedBy) bool { return slices.Contains(e.r.ServedBy, by) }

// performed adds to the list of performed checks.
func (e *examination) performed(checks ...string) {
	for _, check := range checks {
		if !slices.Contains(e.r.Checks, check) {
			e.r.Checks = append(e.r.Checks, check)
		}
	}
}

// has reports whether one of the checks has a finding.
func (e *examination) has(checks ...string) bool {
	return slices.ContainsFunc(e.r.Findings, func(f Finding) bool { return slices.Contains(checks, f.Check) })
}

// entry is an entry in a table of findings.
type entry struct {
	when          bool
	check, object string
	problem       any // an error or a string
	why           string
	// fix can have placeholders, which [examination.report] replaces.
	fix string
}

// first reports the first entry that applies, unless it has no check.
func (e *examination) first(entries ...entry) {
	if i := slices.IndexFunc(entries, func(n entry) bool { return n.when }); i >= 0 && entries[i].check != "" {
		e.report(entries[i])
	}
}

// all reports all entries that apply.
func (e *examination) all(entries ...entry) {
	for _, n := range entries {
		e.first(n)
	}
}

// report adds a finding. Problems that are a lack of permission are reported
// together, as one finding.
func (e *examination) report(n entry) {
	if err, ok := n.problem.(error); ok && errors.Is(err, fs.ErrPermission) {
		if !slices.Contains(e.denied, n.object) {
			e.denied = append(e.denied, n.object)
		}
		return
	}
	restart, remove := "run 'systemctl restart containerd'", "rm "+n.object
	protected := filepath.Clean(n.object)
	protect := "if you trust the content: chown root: %s && chmod go-w %[1]s; otherwise remove it"
	if e.OS == "windows" {
		restart, remove = "in PowerShell: Restart-Service containerd", `del "`+n.object+`"`
		protect = `if you trust the content, in cmd.exe: icacls "%s" /setowner *S-1-5-32-544 /t && icacls "%[1]s" /inheritance:r /grant:r *S-1-5-18:(OI)(CI)F *S-1-5-32-544:(OI)(CI)F; otherwise remove it`
		protected = n.object
		if !slices.ContainsFunc(e.Access, func(a Access) bool { return a.Dir && a.Path == n.object }) && n.object != e.Records.Dir {
			protected = winpath.Dir(n.object) // Others could replace the file in it.
		}
	}
	fix := strings.NewReplacer("{config}", e.Config.Path, "{containerd}", e.Containerd.ConfigPath, "{restart}", restart, "{remove}", remove,
		"{protect}", fmt.Sprintf(protect, protected)).Replace(n.fix)
	e.performed(n.check)
	e.r.Findings = append(e.r.Findings, Finding{n.check, Problem, oneLine(n.object), oneLine(fmt.Sprint(n.problem)), oneLine(n.why), oneLine(fix)})
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// note adds something that is not a problem and may explain one.
func (e *examination) note(format string, args ...any) {
	e.r.Notes = append(e.r.Notes, oneLine(fmt.Sprintf(format, args...)))
}

func (e *examination) setup() {
	unreadable := slices.ContainsFunc([]error{e.Containerd.Err, e.Containerd.FileErr, e.NRI.PluginErr, e.Config.Err, e.Kubelet.DirErr},
		func(err error) bool { return errors.Is(err, fs.ErrPermission) })
	e.performed(CheckSetup)
	e.first(entry{
		len(e.r.ServedBy) == 0 && !unreadable, CheckSetup, "", "directx-nri is not set up on this node", "no container can have a GPU",
		"run 'dxctl runtime install', then 'dxctl runtime configure --restart' if pods get GPUs",
	})
}

func (e *examination) config() {
	c := e.Config
	e.performed(CheckConfig)
	e.first([]entry{
		{c.Err != nil && !errors.Is(c.Err, durable.ErrNotPrivate), CheckConfig, "the node policy", c.Err, "containers that request a GPU do not start", "run 'dxctl config apply', or restart directx-advertiser"},
		{c.Invalid != nil, CheckConfig, c.Path, c.Invalid, "the last valid configuration stays in force", "correct the file; 'dxctl config check' checks it"},
		{len(c.Stale) > 0, CheckConfig, c.Path, strings.Join(c.Stale, "; "), "the change has no effect", "run 'dxctl config apply', or start directx-advertiser"},
	}...)
	if e.served(ServedByKubelet) {
		limits := ""
		if e.OS == "windows" && !e.byClass() {
			limits = ", and a container can have one GPU only"
		}
		e.note("injection: kubelet has no extra mounts and no GPUs for ctr and nerdctl%s; see docs/kubelet-injection.md", limits)
	}
}

func (e *examination) inventory() {
	g := e.GPUs
	e.performed(CheckInventory, CheckDevices, CheckFiles)
	if g.Err != nil {
		const why = "the node offers no GPU, and containers that request one do not start"
		silent := e.Config.Err != nil || e.has(CheckSetup)
		e.first([]entry{
			{!silent && g.Inventory == "" && e.OS != "windows", CheckInventory, e.Config.Path, "no inventory is configured; GPUs are discovered on Windows only", why, "run 'dxctl config apply --inventory FILE', or set inventory in {config}"},
			{!silent, CheckInventory, cmp.Or(g.Inventory, "the GPUs of this node"), g.Err, why, "correct the inventory"},
		}...)
		return
	}
	source := cmp.Or(g.Inventory, "the inventory file")
	offerable := slices.DeleteFunc(slices.Clone(g.List), func(d GPU) bool { return d.Kind() == discovery.KindNone })
	e.first(entry{len(offerable) == 0, CheckDevices, g.Inventory, "the node has no GPU that a container can have", "there is nothing to offer", "install the GPU's driver, or complete the inventory"})
	missing := map[string]bool{} // GPUs with the same driver have the same files.
	for _, d := range offerable {
		if e.byClass() {
			d.Device = d.ByClass()
		}
		name, windows := strings.TrimSuffix(d.Name()+" ("+d.Description+")", " ()"), e.OS == "windows"
		const incomplete = "containers get the GPU incomplete or not at all"
		files := strings.Join(d.Missing, "\n")
		e.first([]entry{
			{!d.Health.OK(), CheckDevices, d.Name(), fmt.Sprintf("GPU %s is unhealthy: %s", name, d.Health), "no container gets it", "enable the device, or install its driver"},
			{windows && d.LocationPath == "" && !e.byClass(), CheckDevices, d.Name(), fmt.Sprintf("GPU %s has no location path", name), incomplete, "add its location path to " + source},
			{windows && len(d.System32) == 0, CheckFiles, d.Name(), fmt.Sprintf("the driver of %s lists no runtime files for containers", name), incomplete, "install a driver that supports GPU-PV or containers"},
			{!windows && len(d.DeviceNodes) == 0, CheckFiles, d.Name(), fmt.Sprintf("GPU %s has no device node", name), incomplete, "add deviceNodes to it in " + source},
		}...)
		e.first(entry{files != "" && !missing[files], CheckFiles, d.Name(), fmt.Sprintf("files of GPU %s are not on this node: %s", d.Name(), few(d.Missing)), incomplete, "reinstall the driver, or correct " + source})
		missing[files] = true
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
		offered = offered || d.Resource != ""
		if d.Resource == "" && d.Kind() != discovery.KindNone {
			without = append(without, d.Name())
		}
	}
	switch {
	case len(without) > 0 && offered:
		e.note("no configured resource matches GPU %s, which is not offered", few(without))
	case len(without) > 0:
		e.report(entry{true, CheckResources, few(without), "no configured resource matches a GPU of this node", "the node offers no GPU", "compare 'dxctl devices -o wide' with resources in {config}"})
	}
}

func (e *examination) windows() {
	if e.Windows == nil {
		return
	}
	e.performed(CheckHCS)
	a, err, name := e.Windows.Assignment(), e.Windows.SchemasErr, e.Windows.Windows.String()
	hangs := errors.Is(err, context.DeadlineExceeded)
	e.first([]entry{
		{hangs, CheckHCS, "vmcompute", fmt.Sprintf("the Host Compute Service does not answer: %v", err), "no container can be started or stopped", "in PowerShell: Restart-Service -Force vmcompute; or restart the node"},
		{!a.Individual && e.Config.Policy.Assignment == policy.AssignByPath, CheckHCS, name, a.Reason, "containers with a GPU do not start", "set assignmentMode: auto in {config}"},
		{a.Individual && errors.Is(err, errors.ErrUnsupported), CheckHCS, name, fmt.Sprintf("the Host Compute Service is not available: %v", err), "no container can be started", "in PowerShell: Install-WindowsFeature Containers; then restart the node"},
	}...)
	if !e.has(CheckHCS) && (!a.Individual || err != nil) {
		e.note("%s", a.Reason)
	}
}

func (e *examination) containerd() {
	c, version := e.Containerd, e.Containerd.Version
	e.performed(CheckContainerd, CheckFile)
	var major, minor int
	_, err := fmt.Sscanf(strings.TrimPrefix(version, "v"), "%d.%d", &major, &minor)
	known := c.Err == nil && err == nil
	e.first([]entry{
		{when: c.WithoutCRI && e.r.Role == RoleStandalone},
		{c.WithoutCRI, CheckContainerd, c.Socket, "containerd runs without its CRI plugin", "the kubelet cannot start pods", "remove cri from disabled_plugins in {containerd}"},
		{c.Err != nil, CheckContainerd, c.Socket, fmt.Errorf("containerd does not answer: %w", c.Err), "no container can be started", "{restart}, see its log, or set --cri-socket"},
		{known && (major < 1 || major == 1 && minor < 7), CheckContainerd, version, "containerd " + version + " is older than 1.7", "it is not supported", "install containerd 1.7 or later"},
		{
			known && e.OS == "linux" && major >= 2 && e.r.Role == RoleKubernetes && slices.Equal(e.r.ServedBy, []ServedBy{ServedByShim}),
			CheckContainerd, version, "containerd " + version + " on Linux runs the shim for a pod's sandbox only", "pods with a GPU do not start",
			"set servedBy: nri, and run directx-nri",
		},
	}...)
	const why = "containerd does not start again"
	e.first(entry{c.FileErr != nil, CheckFile, c.ConfigPath, c.FileErr, why, "correct the file, or set --config"})
	for _, bad := range c.BadImports {
		e.report(entry{true, CheckFile, c.ConfigPath, bad, why, "correct that file, or remove it from imports"})
	}
	if e.served(ServedByShim) { // The NRI plugin does not depend on runtime handlers.
		e.overrides()
	}
}

func (e *examination) overrides() {
	for _, override := range e.Containerd.Overrides {
		e.report(entry{true, CheckFile, e.Containerd.ConfigPath, override, "the settings of 'dxctl runtime configure' have no effect", "move that table to {containerd}"})
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
	routed := false
	for _, h := range c.File.Handlers {
		routed = routed || h.Ours()
		if err := h.CheckEligible(e.OS); err != nil && h.Ours() {
			e.report(entry{true, CheckHandlers, h.Name, fmt.Sprintf("%v, and uses our shim", err), "its containers get no GPU", "remove its runtime_path in {containerd}"})
		}
		if h.Ours() && !h.PassesAnnotations() {
			silent = append(silent, h.Name)
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
	names := strings.Join(silent, ", ")
	e.first(entry{names != "", CheckHandlers, names, fmt.Sprintf("runtime handler %s does not pass on %s", names, containerdconfig.AnnotationPattern), "the shim does not get the annotations of pods", containerdconfig.Fix})
	names = strings.Join(stale, ", ")
	e.first([]entry{
		{c.Err == nil && names != "", CheckHandlers, names, fmt.Sprintf("the running containerd has not loaded runtime handler %s as %s configures it", names, c.ConfigPath), "the configuration has no effect until containerd is restarted", "{restart}, or set --config"},
		{!routed && e.Leftovers.Failed == "", CheckHandlers, c.ConfigPath, "no runtime handler uses our shim", "pods with a GPU do not start", containerdconfig.Fix},
	}...)
}

func (e *examination) shims() {
	e.performed(CheckShim)
	for _, s := range e.Shims {
		// Pods are served by runtime_path; the shim that ctr finds by name is optional.
		if len(s.Handlers) == 0 && e.r.Role == RoleKubernetes {
			continue
		}
		e.shim(s)
		e.first(entry{s.Err == nil && s.RealErr != nil && !e.has(CheckShim, CheckConfig), CheckShim, s.Path, fmt.Sprint(s.RealErr), "no container that uses our shim starts", "install the real shim beside containerd, or set shim.runtime in {config}"})
	}
}

func (e *examination) shim(s Shim) {
	user := "ctr and nerdctl"
	if len(s.Handlers) > 0 {
		user = "runtime handler " + strings.Join(s.Handlers, ", ")
	}
	why := "containers of " + user + " do not start"
	e.first([]entry{
		{s.Err == nil && e.Version != "" && s.Version != e.Version, CheckShim, s.Path, fmt.Sprintf("the shim has version %s, and dxctl has version %s", cmp.Or(s.Version, "unknown"), e.Version), "they may not read each other's files", "run 'dxctl runtime install' of the same version"},
		{errors.Is(s.Err, fs.ErrNotExist), CheckShim, s.Path, "the shim of " + user + " does not exist", why, "run 'dxctl runtime install', or 'dxctl runtime unconfigure --restart'"},
		{errors.Is(s.Err, durable.ErrUntrusted), CheckPermissions, s.Path, s.Err, "containerd runs the shim with all privileges", "{protect}"},
		{s.Err != nil, CheckShim, s.Path, fmt.Errorf("the shim of %s does not work: %w", user, s.Err), why, "run 'dxctl runtime install', which tests it"},
	}...)
}

func (e *examination) nri() {
	n, c := e.NRI, e.Containerd
	if e.has(CheckContainerd, CheckFile) || c.Err != nil {
		return
	}
	e.performed(CheckNRI)
	isOff := c.FileErr == nil && !c.File.NRI && len(c.Overrides) == 0 // An import may enable it.
	const why = "pods with a GPU do not start while the NRI plugin is not registered"
	e.first([]entry{
		{n.PluginErr == nil && isOff, CheckNRI, c.ConfigPath, "NRI is enabled in the running containerd and disabled in " + c.ConfigPath, "pods with a GPU do not start after containerd's next restart", "run 'dxctl runtime configure --no-shim', or set --config"},
		{when: n.PluginErr == nil || isOff && e.Leftovers.Failed != ""},
		{errors.Is(n.PluginErr, fs.ErrPermission), CheckNRI, "the NRI plugin on " + n.PluginSocket, n.PluginErr, "", ""},
		{isOff, CheckNRI, c.ConfigPath, "NRI is disabled in containerd", why, "run 'dxctl runtime configure --no-shim --restart'"},
		{n.SocketErr != nil, CheckNRI, n.Socket, fmt.Errorf("containerd does not accept NRI plugins on %s: %w", n.Socket, n.SocketErr), why, "{restart}, or set --nri-socket"},
		{true, CheckNRI, n.PluginSocket, n.PluginErr, why, "start directx-nri, or see its log"},
	}...)
}

func (e *examination) kubelet() {
	k := e.Kubelet
	e.performed(CheckKubelet)
	err := k.DirErr
	if err == nil {
		err = k.SocketErr
	}
	e.first(entry{err != nil, CheckKubelet, k.Dir, fmt.Errorf("the kubelet does not accept device plugins in %s: %w", k.Dir, err), "the node cannot offer GPUs", "start the kubelet, or use --role standalone"})
	if err != nil && (k.DirErr != nil || !e.has(CheckKubelet)) || e.Config.Err != nil { // Without a policy, the names of the resources are unknown.
		return
	}
	e.performed(CheckAdvertiser)
	for _, resource := range slices.Sorted(maps.Keys(k.Advertiser)) {
		err, object := k.Advertiser[resource], resource
		if errors.Is(err, fs.ErrPermission) { // For all resources.
			object = "directx-advertiser in " + k.Dir
		}
		e.first(entry{err != nil && !e.has(CheckAdvertiser), CheckAdvertiser, object, fmt.Errorf("directx-advertiser does not answer in %s: %w", k.Dir, err), "pods that request a GPU stay pending", "start directx-advertiser, or see its log"})
	}
	if !e.has(CheckKubelet, CheckAdvertiser) {
		e.registration()
	}
}

func (e *examination) registration() {
	k := e.Kubelet
	e.performed(CheckRegistration)
	if err := k.PodResourcesErr; err != nil {
		old := errors.Is(err, errors.ErrUnsupported)
		e.first(entry{!old, CheckRegistration, k.PodResources, fmt.Errorf("the kubelet's PodResources API cannot be reached: %w", err), "GPUs of deleted pods stay allocated", "set --pod-resources-socket"})
		return
	}
	// The advertiser offers nothing that containers would not get.
	if len(e.GPUs.List) == 0 || e.has(CheckHandlers, CheckShim, CheckContainerd) && !e.served(ServedByNRI) && !e.served(ServedByKubelet) {
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
		e.report(entry{true, CheckRegistration, resource, problem, "pods that request it stay pending, or share fewer GPUs", "see the log of directx-advertiser"})
	}
}

func (e *examination) records() {
	r := e.Records
	e.performed(CheckRecords)
	const why = "a container whose record cannot be used does not start"
	e.first([]entry{
		{when: errors.Is(r.Err, fs.ErrNotExist)},
		{errors.Is(r.Err, durable.ErrNotPrivate), CheckRecords, r.Dir, r.Err, "no container gets a GPU", "{protect}"},
		{r.Err != nil, CheckRecords, r.Dir, r.Err, why, "check the disk"},
	}...)
	for _, file := range r.Damaged {
		e.report(entry{true, CheckRecords, file.Path, fmt.Errorf("an allocation record cannot be used: %w", file.Err), why, "delete its pod, then the file: {remove}"})
	}
}

func (e *examination) permissions() {
	e.performed(CheckPermissions)
	for _, a := range e.Access {
		e.first([]entry{
			{errors.Is(a.Err, durable.ErrNotPrivate) || errors.Is(a.Err, durable.ErrUntrusted), CheckPermissions, a.Path, a.Err, a.Why, "{protect}"},
			{errors.Is(a.Err, fs.ErrNotExist), CheckPermissions, a.Path, a.Path + " is configured and does not exist", "pods that request a file of it do not start", "create it, or remove it from {config}"},
			{a.Err != nil, CheckPermissions, a.Path, a.Err, a.Why, "check the disk"},
		}...)
	}
}

func (e *examination) leftovers() {
	l := e.Leftovers
	e.performed(CheckLeftovers)
	for _, file := range l.Damaged {
		e.report(entry{true, CheckLeftovers, file.Path, file.Err, "'dxctl runtime configure' and 'unconfigure' fail", "if you do not need its content: {remove}"})
	}
	e.all([]entry{
		{l.Journal != "" && !l.Applied && !e.has(CheckFile), CheckLeftovers, l.Journal, "containerd's configuration no longer has the changes of 'dxctl runtime configure'", "another program replaced the file", "run 'dxctl runtime configure --restart', or 'dxctl runtime unconfigure'"},
		{
			l.Failed != "", CheckLeftovers, l.Failed, fmt.Sprintf("containerd did not restart with the configuration of 'dxctl runtime configure' at %s: %s", l.FailedAt.UTC().Format(time.RFC3339), l.FailedCause),
			"the old configuration is in force, and the same change is not tried again for an hour", "see containerd's log; to try again now: {remove}",
		},
		{l.Backup != "", CheckLeftovers, l.Backup, "containerd's configuration has a backup without a record of the changes", "'dxctl runtime unconfigure' cannot restore the file", "compare it with {containerd}, then: {remove}"},
		{l.Pending != "", CheckLeftovers, l.Pending, "containers were handed over to the real shim, but containerd was not restarted", "the shim cannot be removed", "run 'dxctl runtime uninstall --restart' again"},
		{len(l.Abandoned) > 0 && !e.has(CheckShim), CheckLeftovers, l.AbandonedBy, "the shim of running containers no longer exists: " + few(l.Abandoned), "containerd loses them when it restarts", "run 'dxctl runtime install', then 'dxctl runtime uninstall --restart'"},
	}...)
}

// few returns the first elements of a list and the number of the others.
func few(list []string) string {
	const most = 3
	if len(list) <= most {
		return strings.Join(list, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(list[:most], ", "), len(list)-most)
}
