package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/discovery/node"
	"github.com/directx-nri/directx-nri/internal/capabilities"
	"github.com/directx-nri/directx-nri/internal/containerdconfig"
	"github.com/directx-nri/directx-nri/internal/durable"
	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/readiness"
)

// The names of the checks.
const (
	CheckSetup        = "setup"             // directx-nri is set up
	CheckConfig       = "config"            // the configuration is valid and in force
	CheckWSL          = "wsl"               // WSL has GPUs and runs services
	CheckInventory    = "inventory"         // the GPUs can be listed
	CheckDevices      = "devices"           // there are GPUs, and containers can have them
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
)

// Components that add GPUs to containers.
const (
	byNRI     = string(policy.ServedByNRI)
	byShim    = string(policy.ServedByShim)
	byKubelet = string(policy.InjectByKubelet)
)

// examination collects findings.
type examination struct {
	Facts
	r Report
}

// Examine returns the problems of a node: one finding for each cause, and none for
// its consequences.
func Examine(f Facts) Report {
	e := &examination{Facts: f, r: Report{Version: f.Version, OS: f.OS, Role: RoleStandalone, ServedBy: f.servedBy(), Findings: []Finding{}}}
	if f.Kubelet != nil {
		e.r.Role = RoleKubernetes
	}
	e.setup()
	e.files()
	e.config()
	if e.wsl(); e.has(CheckWSL) {
		return e.r // The remedy restarts everything.
	}
	e.gpus()
	e.windows()
	e.containerd()
	if e.served(byShim) {
		if f.Kubelet != nil {
			e.handlers()
		}
		e.shims()
	}
	if e.served(byNRI) {
		e.nri()
	}
	if f.Kubelet != nil && len(e.r.ServedBy) > 0 {
		e.kubelet()
	}
	return e.r
}

// servedBy returns the components that add GPUs to containers, none if directx-nri is
// not set up.
func (f Facts) servedBy() []string {
	routed := slices.ContainsFunc(f.Containerd.Handlers, func(h Handler) bool { return h.Routed || h.Loaded })
	hasShim := slices.ContainsFunc(f.Shims, func(s Shim) bool { return !errors.Is(s.Err, fs.ErrNotExist) })
	plugin := f.OS != "windows" && !errors.Is(f.NRIErr, readiness.ErrNotRunning)
	list := []string{}
	switch {
	case !routed && !hasShim && !plugin && !f.Config.Applied:
		return list
	case f.Kubelet == nil:
		return append(list, byShim)
	case f.Config.Policy.Injection == policy.InjectByKubelet:
		list = append(list, byKubelet)
	default:
		list = append(list, string(f.Config.Policy.ServedBy))
	}
	if routed && !slices.Contains(list, byShim) {
		list = append(list, byShim)
	}
	return list
}

func (e *examination) served(by string) bool { return slices.Contains(e.r.ServedBy, by) }

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

// report adds a finding. A lack of permission is no problem of the node.
func (e *examination) report(n entry) {
	err, _ := n.problem.(error)
	access, severity := new(durable.AccessError), Problem
	switch {
	case errors.Is(err, fs.ErrPermission):
		severity, n.why, n.fix = Unknown, "problems there are not detected", "run dxctl as root or an administrator"
	case errors.As(err, &access):
		n.problem, n.fix = fmt.Sprintf("%s: %v: %s", access.Path, access.Reason, access.Cause), access.Remedy
	}
	restart, remove := "run 'systemctl restart containerd'", "rm "+n.object
	switch {
	case e.OS == "windows":
		restart, remove = "in PowerShell: Restart-Service containerd", `del "`+n.object+`"`
	case strings.Contains(e.Containerd.Socket, "/k3s/"): // also on agents, and RKE2's
		restart = "restart the service of k3s or RKE2"
	}
	fix := strings.NewReplacer("{config}", e.Config.Path, "{containerd}", e.Containerd.ConfigPath, "{restart}", restart, "{remove}", remove).Replace(n.fix)
	e.r.Findings = append(e.r.Findings, Finding{n.check, severity, errlog.OneLine(n.object), errlog.OneLine(fmt.Sprint(n.problem)), errlog.OneLine(n.why), errlog.OneLine(fix)})
}

func (e *examination) setup() {
	denied := slices.ContainsFunc([]error{e.Containerd.Err, e.Containerd.FileErr, e.NRIErr, e.Config.Err},
		func(err error) bool { return errors.Is(err, fs.ErrPermission) })
	fix := "run 'dxctl runtime install', then 'dxctl runtime configure --restart' if pods get GPUs"
	if e.OS == "linux" && e.Kubelet != nil {
		fix = "run 'dxctl service install', or install the chart"
	}
	e.first(entry{len(e.r.ServedBy) == 0 && !denied, CheckSetup, "", "directx-nri is not set up on this node", "no container can have a GPU", fix})
}

func (e *examination) files() {
	for _, f := range e.Files {
		e.first(entry{f.Err != nil, f.Kind.check, f.Path, f.Err, f.Kind.why, f.Kind.fix})
	}
}

func (e *examination) config() {
	c := e.Config
	e.first([]entry{
		{c.Err != nil && !errors.Is(c.Err, durable.ErrNotPrivate), CheckConfig, "the node policy", c.Err, "containers that request a GPU do not start", "run 'dxctl config apply', or restart directx-advertiser"},
		{c.Invalid != nil, CheckConfig, c.Path, c.Invalid, "the last valid configuration stays in force", "correct the file; 'dxctl config check' checks it"},
		{len(c.Stale) > 0, CheckConfig, c.Path, strings.Join(c.Stale, "; "), "the change has no effect", "run 'dxctl config apply', or start directx-advertiser"},
	}...)
}

const restartWSL = "then run 'wsl --shutdown' in Windows"

func (e *examination) wsl() {
	w := e.WSL
	if w == nil {
		return
	}
	const why = "the node offers no GPU"
	live := e.GPUs.Inventory == ""
	e.first([]entry{
		{live && !w.Driver, CheckWSL, "/dev/dxg", "kernel " + w.Kernel + " of WSL has no /dev/dxg", why, "run 'wsl --update' in Windows, or build your kernel with CONFIG_DXGKRNL; " + restartWSL},
		{live && !w.Libraries, CheckWSL, "/usr/lib/wsl/lib", "WSL has no libraries of GPU drivers: /usr/lib/wsl/lib does not exist", why, "install the current driver of the GPU in Windows, and remove enabled=false from section [gpu] of /etc/wsl.conf; " + restartWSL},
		{!w.Systemd && (e.Containerd.Err != nil || e.served(byNRI) && errors.Is(e.NRIErr, readiness.ErrNotRunning)), CheckWSL, "/etc/wsl.conf", "systemd, which starts containerd and directx-nri, does not run", why, "set systemd=true in section [boot] of /etc/wsl.conf; " + restartWSL},
	}...)
}

func (e *examination) gpus() {
	g := e.GPUs
	if g.Err != nil {
		const why = "the node offers no GPU, and containers that request one do not start"
		e.first([]entry{
			{when: e.Config.Err != nil || e.has(CheckSetup)},
			{errors.Is(g.Err, node.ErrNoInventory), CheckInventory, e.Config.Path, g.Err, why, "run 'dxctl config apply --inventory FILE', or set inventory in {config}"},
			{g.Inventory != "", CheckInventory, g.Inventory, g.Err, why, "correct the inventory"},
			{true, CheckInventory, "the GPUs of this node", g.Err, why, "check the GPU's driver, and see the log of directx-advertiser"},
		}...)
		return
	}
	var usable, without []string
	missing := map[string]bool{} // GPUs with the same driver have the same files.
	for _, d := range g.List {
		if d.Kind() == discovery.KindNone {
			continue
		}
		usable = append(usable, d.Name())
		if d.Resource == "" {
			without = append(without, d.Name())
		}
		e.gpu(d, missing)
	}
	e.first([]entry{
		{len(usable) == 0, CheckDevices, g.Inventory, "the node has no GPU that a container can have", "there is nothing to offer", "install the GPU's driver, or complete the inventory"},
		{len(without) == len(usable), CheckResources, few(without), "no configured resource matches a GPU of this node", "the node offers no GPU", "compare 'dxctl devices -o wide' with resources in {config}"},
	}...)
}

func (e *examination) gpu(d GPU, missing map[string]bool) {
	windows := e.OS == "windows"
	gpu, source := "GPU "+strings.TrimSuffix(d.Name()+" ("+d.Description+")", " ()"), cmp.Or(e.GPUs.Inventory, "the inventory file")
	fix := "enable the device, install a driver that supports containers, or complete " + source
	if !windows && e.GPUs.Inventory == "" {
		fix = "update the GPU's driver in Windows, and restart the VM; in WSL, run 'wsl --shutdown' in Windows"
	}
	const why = "no container gets it"
	e.first([]entry{
		{!d.Health.OK(), CheckDevices, d.Name(), gpu + " is unhealthy: " + d.Health.String(), why, fix},
		{d.Err != nil, CheckDevices, d.Name(), d.Err, why, fix},
		{windows && len(d.System32) == 0 && e.DriverFiles != policy.FilesNone, CheckDevices, d.Name(), gpu + " has a driver without runtime files for containers", why, fix},
	}...)
	files := strings.Join(d.Missing, "\n")
	e.first(entry{files != "" && !missing[files], CheckFiles, d.Name(), fmt.Sprintf("files of GPU %s are not on this node: %s", d.Name(), few(d.Missing)), "containers get the GPU incomplete", "reinstall the driver, or correct " + source})
	missing[files] = true
}

func (e *examination) windows() {
	if e.Windows == nil {
		return
	}
	auto, err := capabilities.Resolve(policy.Default(), e.OS, e.Windows.Windows.Build), e.Windows.HCSErr
	e.first([]entry{
		{errors.Is(err, context.DeadlineExceeded), CheckHCS, "vmcompute", fmt.Sprintf("the Host Compute Service does not answer: %v", err), "no container can be started or stopped", "in PowerShell: Restart-Service -Force vmcompute; or restart the node"},
		{auto.Assignment == policy.AssignByClass && e.Config.Policy.Assignment == policy.AssignByPath, CheckHCS, e.Windows.Windows.String(), auto.Reason, "containers with a GPU do not start", "set assignmentMode: auto in {config}"},
		{auto.Assignment == policy.AssignByPath && errors.Is(err, errors.ErrUnsupported), CheckHCS, "", fmt.Sprintf("the Host Compute Service is not available: %v", err), "no container can be started", "in PowerShell: Install-WindowsFeature Containers; then restart the node"},
	}...)
}

func (e *examination) containerd() {
	c, version := e.Containerd, e.Containerd.Version
	var major, minor int
	_, err := fmt.Sscanf(strings.TrimPrefix(version, "v"), "%d.%d", &major, &minor)
	known, withoutCRI := c.Err == nil && err == nil, status.Code(c.Err) == codes.Unimplemented
	e.first([]entry{
		{when: withoutCRI && e.Kubelet == nil},
		{withoutCRI, CheckContainerd, c.Socket, "containerd runs without its CRI plugin", "the kubelet cannot start pods", "remove cri from disabled_plugins in {containerd}"},
		{c.Err != nil, CheckContainerd, c.Socket, fmt.Errorf("containerd does not answer: %w", c.Err), "no container can be started", "{restart}, see its log, or set --cri-socket"},
		{known && (major < 1 || major == 1 && minor < 7), CheckContainerd, version, "containerd " + version + " is older than 1.7", "it is not supported", "install containerd 1.7 or later"},
		{
			known && e.OS == "linux" && major >= 2 && e.Kubelet != nil && slices.Equal(e.r.ServedBy, []string{byShim}),
			CheckContainerd, version, "containerd " + version + " on Linux runs the shim for a pod's sandbox only", "pods with a GPU do not start",
			"set servedBy: nri, and run directx-nri",
		},
	}...)
	for _, h := range c.Handlers {
		e.first(entry{
			h.IgnoresDevices() && e.Kubelet != nil, CheckHandlers, h.Name, fmt.Sprintf("runtime handler %s runs a shim that starts containers without their devices", h.Name),
			"its containers would start without their GPUs; with our shim, the node offers none", "remove the handler from {containerd}; then {restart}",
		})
	}
	const why = "containerd does not start again"
	e.first(entry{c.FileErr != nil, CheckFile, c.ConfigPath, c.FileErr, why, "correct the file, or set --config"})
	for _, bad := range c.Imports {
		overridden := errors.Is(bad, ErrOverridden)
		e.first([]entry{
			{when: overridden && !e.served(byShim)},
			{overridden, CheckFile, c.ConfigPath, bad, "the settings of 'dxctl runtime configure' have no effect", "move that table to {containerd}"},
			{true, CheckFile, c.ConfigPath, bad, why, "correct that file, or remove it from imports"},
		}...)
	}
}

func (e *examination) handlers() {
	e.first(entry{
		e.NotServed != nil, CheckHandlers, "", e.NotServed, "pods with a GPU do not start, and none is offered",
		"use handlers of type io.containerd.runhcs.v1 while its shim exists, then 'dxctl runtime install'; otherwise set injection: kubelet, if the shim honors devices; see docs/limits.md",
	})
	c := e.Containerd
	if c.FileErr != nil {
		return
	}
	var silent, stale, notEligible []string
	routed := false
	for _, h := range c.Handlers {
		routed = routed || h.Routed
		if h.NotEligible != "" {
			notEligible = append(notEligible, h.NotEligible)
		}
		e.first(entry{h.Routed && h.NotEligible != "", CheckHandlers, h.Name, h.NotEligible + ", and uses our shim", "its containers get no GPU", "remove its runtime_path in {containerd}"})
		if h.Routed && !h.Annotations {
			silent = append(silent, h.Name)
		}
		if h.Routed != h.Loaded && c.Err == nil {
			stale = append(stale, h.Name)
		}
	}
	names := strings.Join(silent, ", ")
	e.first(entry{names != "", CheckHandlers, names, fmt.Sprintf("runtime handler %s does not pass on %s", names, containerdconfig.AnnotationPattern), "the shim does not get the annotations of pods", containerdconfig.Fix})
	names = strings.Join(stale, ", ")
	e.first([]entry{
		{names != "", CheckHandlers, names, fmt.Sprintf("the running containerd has not loaded runtime handler %s as %s configures it", names, c.ConfigPath), "the configuration has no effect until containerd is restarted", "{restart}, or set --config"},
		{!routed && len(notEligible) > 0 && len(notEligible) == len(c.Handlers), CheckHandlers, c.ConfigPath, "no runtime handler can have GPUs: " + strings.Join(notEligible, "; "), "pods with a GPU do not start", "add a handler without a sandboxer to {containerd}, then " + containerdconfig.Fix},
		{!routed && !e.has(CheckLeftovers), CheckHandlers, c.ConfigPath, "no runtime handler uses our shim", "pods with a GPU do not start", containerdconfig.Fix},
	}...)
}

func (e *examination) shims() {
	for _, s := range e.Shims {
		// Pods are served by runtime_path; the shim that ctr finds by name is optional.
		if len(s.Handlers) == 0 && e.Kubelet != nil {
			continue
		}
		user := "ctr and nerdctl"
		if len(s.Handlers) > 0 {
			user = "runtime handler " + strings.Join(s.Handlers, ", ")
		}
		why := "containers of " + user + " do not start"
		e.first([]entry{
			{s.Err == nil && s.Version != e.Version, CheckShim, s.Path, fmt.Sprintf("the shim has version %s, and dxctl has version %s", s.Version, e.Version), "they may not read each other's files", "run 'dxctl runtime install' of the same version"},
			{errors.Is(s.Err, fs.ErrNotExist), CheckShim, s.Path, "the shim of " + user + " does not exist", why, "run 'dxctl runtime install', or 'dxctl runtime unconfigure --restart'"},
			{errors.Is(s.Err, durable.ErrUntrusted), CheckPermissions, s.Path, s.Err, "containerd runs the shim with all privileges", ""},
			{s.Err != nil, CheckShim, s.Path, fmt.Errorf("the shim of %s does not work: %w", user, s.Err), why, "run 'dxctl runtime install', which tests it"},
			{s.RealErr != nil && !e.has(CheckShim, CheckConfig), CheckShim, s.Path, fmt.Sprint(s.RealErr), "no container that uses our shim starts", "install the real shim beside containerd, or set shim.runtime in {config}"},
		}...)
	}
}

func (e *examination) nri() {
	c := e.Containerd
	if e.has(CheckContainerd, CheckFile) || c.Err != nil {
		return
	}
	isOff := c.FileErr == nil && !c.NRI && len(c.Imports) == 0 // An import may enable it.
	const why = "pods with a GPU do not start while the NRI plugin is not registered"
	e.first([]entry{
		{e.NRIErr == nil && isOff, CheckNRI, c.ConfigPath, "NRI is enabled in the running containerd and disabled in " + c.ConfigPath, "pods with a GPU do not start after containerd's next restart", "run 'dxctl runtime configure --no-shim', or set --config"},
		{when: e.NRIErr == nil || isOff && e.has(CheckLeftovers)},
		{isOff, CheckNRI, c.ConfigPath, "NRI is disabled in containerd", why, "run 'dxctl runtime configure --no-shim --restart'"},
		{true, CheckNRI, "directx-nri", e.NRIErr, why, "start directx-nri, or see its log"},
	}...)
}

func (e *examination) kubelet() {
	k := e.Kubelet
	e.first(entry{k.RestartErr != nil, CheckKubelet, "kubelet.exe", k.RestartErr, "after its next restart, the node is not ready", "update Kubernetes; do not restart containerd before"})
	e.first([]entry{
		{k.SocketErr != nil, CheckKubelet, k.Dir, fmt.Errorf("the kubelet does not accept device plugins in %s: %w", k.Dir, k.SocketErr), "the node cannot offer GPUs", "start the kubelet; on a node without Kubernetes, set --kubelet-dir ''"},
		{when: e.Config.Err != nil}, // The names of the resources are unknown.
		{k.AdvertiserErr != nil, CheckAdvertiser, "directx-advertiser", fmt.Errorf("directx-advertiser does not answer in %s: %w", k.Dir, k.AdvertiserErr), "pods that request a GPU stay pending", "start directx-advertiser, or see its log"},
	}...)
	if e.Config.Err == nil && k.SocketErr == nil && k.AdvertiserErr == nil {
		e.registration()
	}
}

func (e *examination) registration() {
	k := e.Kubelet
	if err := k.PodResourcesErr; err != nil {
		e.report(entry{true, CheckRegistration, "PodResources", fmt.Errorf("the kubelet's PodResources API cannot be reached: %w", err), "GPUs of deleted pods stay allocated", "set --pod-resources-socket"})
		return
	}
	// The advertiser advertises nothing that containers would not get.
	if len(e.GPUs.List) == 0 || e.has(CheckHandlers, CheckShim, CheckContainerd) && !e.served(byNRI) && !e.served(byKubelet) {
		return
	}
	const fix = "see the log of directx-advertiser"
	if e.OS == "windows" && len(k.Allocatable) == 0 {
		e.first(entry{k.ReadyErr != nil, CheckRegistration, "directx-advertiser", k.ReadyErr, "pods that request a GPU stay pending, or do not start", fix})
		return
	}
	missing := map[string]bool{}
	for _, d := range e.GPUs.List {
		if d.Resource == "" || d.Kind() == discovery.KindNone || !d.Health.OK() || missing[d.Resource] {
			continue
		}
		prefix := strings.ToLower(d.InstanceID) + "::"
		missing[d.Resource] = !slices.ContainsFunc(k.Allocatable[d.Resource], func(id string) bool { return strings.HasPrefix(strings.ToLower(id), prefix) })
		e.first(entry{missing[d.Resource], CheckRegistration, d.Resource, fmt.Sprintf("the kubelet does not list GPU %s as allocatable %s", d.Name(), d.Resource), "pods that request it stay pending, or share fewer GPUs", fix})
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
