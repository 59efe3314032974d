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
	CheckSetup            = "setup"             // directx-nri is set up
	CheckConfig           = "config"            // the configuration is valid and in force
	CheckWSL              = "wsl"               // WSL has GPUs and runs services
	CheckInventory        = "inventory"         // the GPUs can be listed
	CheckDevices          = "devices"           // there are GPUs, and containers can have them
	CheckDriverFiles      = "files"             // the files of drivers exist
	CheckResources        = "resources"         // the configured resources match GPUs
	CheckHCS              = "hcs"               // Windows can assign GPUs as configured
	CheckContainerd       = "containerd"        // containerd answers and is recent enough
	CheckContainerdConfig = "containerd-config" // its configuration is valid
	CheckHandlers         = "handlers"          // runtime handlers use the shim
	CheckShim             = "shim"              // the runtime shim and the real shim work
	CheckNRI              = "nri"               // the NRI plugin is registered
	CheckKubelet          = "kubelet"           // the kubelet accepts device plugins
	CheckAdvertiser       = "advertiser"        // directx-advertiser answers
	CheckRegistration     = "registration"      // the kubelet offers the GPUs
	CheckRecords          = "records"           // the allocation records can be used
	CheckPermissions      = "permissions"       // only administrators can write the files
	CheckLeftovers        = "leftovers"         // no command was interrupted
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

// finding is a [Finding] before its texts are completed. Its problem is err, if that is set.
type finding struct {
	check, object, problem string
	err                    error
	why                    string
	// fix can have the placeholders {config}, {containerd}, {restart} and {remove}.
	fix string
}

// report adds a finding. A lack of permission is not a problem of the node.
func (e *examination) report(n finding) {
	severity := Problem
	if n.err != nil {
		n.problem = n.err.Error()
	}
	access := new(durable.AccessError)
	switch {
	case errors.Is(n.err, fs.ErrPermission):
		severity, n.why, n.fix = Unknown, "problems there are not detected", "run dxctl as root or an administrator"
	case errors.As(n.err, &access):
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
	e.r.Findings = append(e.r.Findings, Finding{
		Check: n.check, Severity: severity, Object: errlog.OneLine(n.object),
		Problem: errlog.OneLine(n.problem), Why: errlog.OneLine(n.why), Fix: errlog.OneLine(fix),
	})
}

// setup reports a node that is not set up. One without a driver of GPUs has nothing to set up.
func (e *examination) setup() {
	denied := slices.ContainsFunc([]error{e.Containerd.Err, e.Containerd.FileErr, e.NRIErr, e.Config.Err},
		func(err error) bool { return errors.Is(err, fs.ErrPermission) })
	if len(e.r.ServedBy) > 0 || denied || errors.Is(e.GPUs.Err, node.ErrNoInventory) {
		return
	}
	fix := "run 'dxctl runtime install', then 'dxctl runtime configure --restart' if pods get GPUs"
	if e.OS == "linux" && e.Kubelet != nil {
		fix = "run 'dxctl service install', or install the chart"
	}
	e.report(finding{check: CheckSetup, problem: "directx-nri is not set up on this node", why: "no container can have a GPU", fix: fix})
}

func (e *examination) files() {
	for _, f := range e.Files {
		if f.Err != nil {
			e.report(finding{check: f.Kind.check, object: f.Path, err: f.Err, why: f.Kind.why, fix: f.Kind.fix})
		}
	}
}

func (e *examination) config() {
	c := e.Config
	switch {
	case c.Err != nil && !errors.Is(c.Err, durable.ErrNotPrivate):
		e.report(finding{
			check: CheckConfig, object: "the node policy", err: c.Err,
			why: "containers that request a GPU do not start",
			fix: "run 'dxctl config apply', or restart directx-advertiser",
		})
	case c.Invalid != nil:
		e.report(finding{
			check: CheckConfig, object: c.Path, err: c.Invalid,
			why: "the last valid configuration stays in force",
			fix: "correct the file; 'dxctl config check' checks it",
		})
	case len(c.Stale) > 0:
		e.report(finding{
			check: CheckConfig, object: c.Path, problem: strings.Join(c.Stale, "; "),
			why: "the change has no effect",
			fix: "run 'dxctl config apply', or start directx-advertiser",
		})
	}
}

func (e *examination) wsl() {
	w := e.WSL
	if w == nil {
		return
	}
	const why, restart = "the node offers no GPU", "; then run 'wsl --shutdown' in Windows"
	discovered := e.GPUs.Inventory == ""
	stopped := e.Containerd.Err != nil || e.served(byNRI) && errors.Is(e.NRIErr, readiness.ErrNotRunning)
	switch {
	case discovered && !w.Driver:
		e.report(finding{
			check: CheckWSL, object: "/dev/dxg", problem: "kernel " + w.Kernel + " of WSL has no /dev/dxg", why: why,
			fix: "run 'wsl --update' in Windows, or build your kernel with CONFIG_DXGKRNL" + restart,
		})
	case discovered && !w.Libraries:
		e.report(finding{
			check: CheckWSL, object: "/usr/lib/wsl/lib", problem: "WSL has no libraries of GPU drivers: /usr/lib/wsl/lib does not exist", why: why,
			fix: "install the current driver of the GPU in Windows, and remove enabled=false from section [gpu] of /etc/wsl.conf" + restart,
		})
	case !w.Systemd && stopped:
		e.report(finding{
			check: CheckWSL, object: "/etc/wsl.conf", problem: "systemd, which starts containerd and directx-nri, does not run", why: why,
			fix: "set systemd=true in section [boot] of /etc/wsl.conf" + restart,
		})
	}
}

func (e *examination) gpus() {
	g := e.GPUs
	if g.Err != nil {
		e.discovery(g)
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
	switch {
	case len(usable) == 0:
		e.report(finding{
			check: CheckDevices, object: g.Inventory, problem: "the node has no GPU that a container can have", why: "there is nothing to offer",
			fix: "install the GPU's driver, or complete the inventory",
		})
	case len(without) == len(usable):
		e.report(finding{
			check: CheckResources, object: few(without), problem: "no configured resource matches a GPU of this node", why: "the node offers no GPU",
			fix: "compare 'dxctl devices -o wide' with resources in {config}",
		})
	}
}

// discovery reports why the GPUs cannot be listed.
func (e *examination) discovery(g GPUs) {
	const why = "the node offers no GPU, and containers that request one do not start"
	switch {
	case e.Config.Err != nil || e.has(CheckSetup):
	case errors.Is(g.Err, node.ErrNoInventory):
		e.report(finding{
			check: CheckInventory, object: "/dev/dxg", err: g.Err, why: why,
			fix: "assign a GPU to this VM in Hyper-V (GPU-PV), and load the module dxgkrnl; for GPUs of another kind, run 'dxctl config apply --inventory FILE'",
		})
	case g.Inventory != "":
		e.report(finding{check: CheckInventory, object: g.Inventory, err: g.Err, why: why, fix: "correct the inventory"})
	default:
		e.report(finding{
			check: CheckInventory, object: "the GPUs of this node", err: g.Err, why: why,
			fix: "check the GPU's driver, and see the log of directx-advertiser",
		})
	}
}

func (e *examination) gpu(d GPU, reported map[string]bool) {
	windows := e.OS == "windows"
	gpu, source := "GPU "+strings.TrimSuffix(d.Name()+" ("+d.Description+")", " ()"), cmp.Or(e.GPUs.Inventory, "the inventory file")
	unusable := finding{
		check: CheckDevices, object: d.Name(), why: "no container gets it",
		fix: "enable the device, install a driver that supports containers, or complete " + source,
	}
	if !windows && e.GPUs.Inventory == "" {
		unusable.fix = "update the GPU's driver in Windows, and restart the VM; in WSL, run 'wsl --shutdown' in Windows"
	}
	switch {
	case !d.Health.OK():
		unusable.problem = gpu + " is unhealthy: " + d.Health.String()
		e.report(unusable)
	case d.Err != nil:
		unusable.err = d.Err
		e.report(unusable)
	case windows && len(d.System32) == 0 && e.DriverFiles != policy.FilesNone:
		unusable.problem = gpu + " has a driver without runtime files for containers"
		e.report(unusable)
	}
	missing := strings.Join(d.Missing, "\n")
	if missing != "" && !reported[missing] {
		e.report(finding{
			check: CheckDriverFiles, object: d.Name(), problem: fmt.Sprintf("files of GPU %s are not on this node: %s", d.Name(), few(d.Missing)),
			why: "containers get the GPU incomplete", fix: "reinstall the driver, or correct " + source,
		})
	}
	reported[missing] = true
}

func (e *examination) windows() {
	if e.Windows == nil {
		return
	}
	auto, err := capabilities.Resolve(policy.Default(), e.OS, e.Windows.Windows.Build), e.Windows.HCSErr
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		e.report(finding{
			check: CheckHCS, object: "vmcompute", err: fmt.Errorf("the Host Compute Service does not answer: %w", err),
			why: "no container can be started or stopped",
			fix: "in PowerShell: Restart-Service -Force vmcompute; or restart the node",
		})
	case auto.Assignment == policy.AssignByClass && e.Config.Policy.Assignment == policy.AssignByPath:
		e.report(finding{
			check: CheckHCS, object: e.Windows.Windows.String(), problem: auto.Reason,
			why: "containers with a GPU do not start",
			fix: "set assignmentMode: auto in {config}",
		})
	case auto.Assignment == policy.AssignByPath && errors.Is(err, errors.ErrUnsupported):
		e.report(finding{
			check: CheckHCS, err: fmt.Errorf("the Host Compute Service is not available: %w", err),
			why: "no container can be started",
			fix: "in PowerShell: Install-WindowsFeature Containers; then restart the node",
		})
	}
}

func (e *examination) containerd() {
	e.containerdAnswer()
	c := e.Containerd
	for _, h := range c.Handlers {
		if h.IgnoresDevices() && e.Kubelet != nil {
			e.report(finding{
				check: CheckHandlers, object: h.Name, problem: fmt.Sprintf("runtime handler %s runs a shim that starts containers without their devices", h.Name),
				why: "its containers would start without their GPUs; with our shim, the node offers none",
				fix: "remove the handler from {containerd}; then {restart}",
			})
		}
	}
	const why = "containerd does not start again"
	if c.FileErr != nil {
		e.report(finding{check: CheckContainerdConfig, object: c.ConfigPath, err: c.FileErr, why: why, fix: "correct the file, or set --containerd-config"})
	}
	for _, bad := range c.Imports {
		switch {
		case !errors.Is(bad, ErrOverridden):
			e.report(finding{check: CheckContainerdConfig, object: c.ConfigPath, err: bad, why: why, fix: "correct that file, or remove it from imports"})
		case e.served(byShim):
			e.report(finding{
				check: CheckContainerdConfig, object: c.ConfigPath, err: bad,
				why: "the settings of 'dxctl runtime configure' have no effect",
				fix: "move that table to {containerd}",
			})
		}
	}
}

// containerdAnswer reports a daemon that does not answer, or that is too old or too new.
func (e *examination) containerdAnswer() {
	c, version := e.Containerd, e.Containerd.Version
	var major, minor int
	_, err := fmt.Sscanf(strings.TrimPrefix(version, "v"), "%d.%d", &major, &minor)
	known, shimOnly := err == nil, slices.Equal(e.r.ServedBy, []string{byShim})
	switch {
	case status.Code(c.Err) == codes.Unimplemented:
		if e.Kubelet != nil {
			e.report(finding{
				check: CheckContainerd, object: c.Socket, problem: "containerd runs without its CRI plugin",
				why: "the kubelet cannot start pods",
				fix: "remove cri from disabled_plugins in {containerd}",
			})
		}
	case c.Err != nil:
		e.report(finding{
			check: CheckContainerd, object: c.Socket, err: fmt.Errorf("containerd does not answer: %w", c.Err),
			why: "no container can be started",
			fix: "{restart}, see its log, or set --cri-socket",
		})
	case known && (major < 1 || major == 1 && minor < 7):
		e.report(finding{
			check: CheckContainerd, object: version, problem: "containerd " + version + " is older than 1.7",
			why: "it is not supported", fix: "install containerd 1.7 or later",
		})
	case known && major >= 2 && e.OS == "linux" && e.Kubelet != nil && shimOnly:
		e.report(finding{
			check: CheckContainerd, object: version, problem: "containerd " + version + " on Linux runs the shim for a pod's sandbox only",
			why: "pods with a GPU do not start", fix: "set servedBy: nri, and run directx-nri",
		})
	}
}

func (e *examination) handlers() {
	const why = "pods with a GPU do not start"
	if e.NotServed != nil {
		e.report(finding{
			check: CheckHandlers, err: e.NotServed, why: why + ", and none is offered",
			fix: "use handlers of type io.containerd.runhcs.v1 while its shim exists, then 'dxctl runtime install'; otherwise set injection: kubelet, if the shim honors devices; see docs/limits.md",
		})
	}
	if e.Containerd.FileErr == nil {
		e.handlerConfig(why)
	}
}

// handlerConfig reports runtime handlers that do not use the shim as they should. why is the
// consequence if none does.
func (e *examination) handlerConfig(why string) {
	c := e.Containerd
	var silent, stale, notEligible []string
	routed := false
	for _, h := range c.Handlers {
		routed = routed || h.Routed
		if h.NotEligible != "" {
			notEligible = append(notEligible, h.NotEligible)
		}
		if h.Routed && h.NotEligible != "" {
			e.report(finding{
				check: CheckHandlers, object: h.Name, problem: h.NotEligible + ", and uses our shim",
				why: "its containers get no GPU", fix: "remove its runtime_path in {containerd}",
			})
		}
		if h.Routed && !h.Annotations {
			silent = append(silent, h.Name)
		}
		if h.Routed != h.Loaded && c.Err == nil {
			stale = append(stale, h.Name)
		}
	}
	if names := strings.Join(silent, ", "); names != "" {
		e.report(finding{
			check: CheckHandlers, object: names, problem: fmt.Sprintf("runtime handler %s does not pass on %s", names, containerdconfig.AnnotationPattern),
			why: "the shim does not get the annotations of pods", fix: containerdconfig.NotRoutedRemedy,
		})
	}
	names := strings.Join(stale, ", ")
	switch {
	case names != "":
		e.report(finding{
			check: CheckHandlers, object: names, problem: fmt.Sprintf("the running containerd has not loaded runtime handler %s as %s configures it", names, c.ConfigPath),
			why: "the configuration has no effect until containerd is restarted", fix: "{restart}, or set --containerd-config",
		})
	case !routed && len(notEligible) > 0 && len(notEligible) == len(c.Handlers):
		e.report(finding{
			check: CheckHandlers, object: c.ConfigPath, problem: "no runtime handler can have GPUs: " + strings.Join(notEligible, "; "), why: why,
			fix: "add a handler without a sandboxer to {containerd}, then " + containerdconfig.NotRoutedRemedy,
		})
	case !routed && !e.has(CheckLeftovers):
		e.report(finding{check: CheckHandlers, object: c.ConfigPath, problem: "no runtime handler uses our shim", why: why, fix: containerdconfig.NotRoutedRemedy})
	}
}

func (e *examination) shims() {
	for _, s := range e.Shims {
		// Pods use the shim of runtime_path; the one that ctr finds by name is optional.
		if len(s.Handlers) > 0 || e.Kubelet == nil {
			e.shim(s)
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
	case errors.Is(s.Err, fs.ErrNotExist):
		e.report(finding{
			check: CheckShim, object: s.Path, problem: "the shim of " + user + " does not exist", why: why,
			fix: "run 'dxctl runtime install', or 'dxctl runtime unconfigure --restart'",
		})
	case errors.Is(s.Err, durable.ErrUntrusted):
		e.report(finding{check: CheckPermissions, object: s.Path, err: s.Err, why: "containerd runs the shim with all privileges"})
	case s.Err != nil:
		e.report(finding{
			check: CheckShim, object: s.Path, err: fmt.Errorf("the shim of %s does not work: %w", user, s.Err), why: why,
			fix: "run 'dxctl runtime install', which tests it",
		})
	case s.Version != e.Version:
		e.report(finding{
			check: CheckShim, object: s.Path, problem: fmt.Sprintf("the shim has version %s, and dxctl has version %s", s.Version, e.Version),
			why: "they may not read each other's files", fix: "run 'dxctl runtime install' of the same version",
		})
	case s.RealErr != nil && !e.has(CheckShim, CheckConfig):
		e.report(finding{
			check: CheckShim, object: s.Path, problem: s.RealErr.Error(), why: "no container that uses our shim starts",
			fix: "install the real shim beside containerd, or set shim.runtime in {config}",
		})
	}
}

func (e *examination) nri() {
	c := e.Containerd
	if e.has(CheckContainerd, CheckContainerdConfig) || c.Err != nil {
		return
	}
	disabled := c.FileErr == nil && !c.NRI && len(c.Imports) == 0 // An import may enable it.
	const why = "pods with a GPU do not start while the NRI plugin is not registered"
	switch {
	case e.NRIErr == nil && disabled:
		e.report(finding{
			check: CheckNRI, object: c.ConfigPath, problem: "NRI is enabled in the running containerd and disabled in " + c.ConfigPath,
			why: "pods with a GPU do not start after containerd's next restart",
			fix: "run 'dxctl runtime configure --no-shim', or set --containerd-config",
		})
	case e.NRIErr == nil || disabled && e.has(CheckLeftovers):
	case disabled:
		e.report(finding{
			check: CheckNRI, object: c.ConfigPath, problem: "NRI is disabled in containerd", why: why,
			fix: "run 'dxctl runtime configure --no-shim --restart'",
		})
	default:
		e.report(finding{check: CheckNRI, object: "directx-nri", err: e.NRIErr, why: why, fix: "start directx-nri, or see its log"})
	}
}

func (e *examination) kubelet() {
	k := e.Kubelet
	if k.RestartErr != nil {
		e.report(finding{
			check: CheckKubelet, object: "kubelet.exe", err: k.RestartErr, why: "after its next restart, the node is not ready",
			fix: "update Kubernetes; do not restart containerd before",
		})
	}
	switch {
	case k.SocketErr != nil:
		e.report(finding{
			check: CheckKubelet, object: k.Dir, err: fmt.Errorf("the kubelet does not accept device plugins in %s: %w", k.Dir, k.SocketErr),
			why: "the node cannot offer GPUs",
			fix: "start the kubelet; on a node without Kubernetes, set --kubelet-dir ''",
		})
	case e.Config.Err != nil: // The names of the resources are unknown.
	case k.AdvertiserErr != nil:
		e.report(finding{
			check: CheckAdvertiser, object: "directx-advertiser", err: fmt.Errorf("directx-advertiser does not answer in %s: %w", k.Dir, k.AdvertiserErr),
			why: "pods that request a GPU stay pending",
			fix: "start directx-advertiser, or see its log",
		})
	default:
		e.registration()
	}
}

func (e *examination) registration() {
	k := e.Kubelet
	if err := k.PodResourcesErr; err != nil {
		e.report(finding{
			check: CheckRegistration, object: "PodResources", err: fmt.Errorf("the kubelet's PodResources API cannot be reached: %w", err),
			why: "GPUs of deleted pods stay allocated", fix: "set --pod-resources-socket",
		})
		return
	}
	// The advertiser advertises nothing that containers would not get.
	if len(e.GPUs.List) == 0 || e.has(CheckHandlers, CheckShim, CheckContainerd) && !e.served(byNRI) && !e.served(byKubelet) {
		return
	}
	const fix = "see the log of directx-advertiser"
	if e.OS == "windows" && len(k.Allocatable) == 0 {
		if k.ReadyErr != nil {
			e.report(finding{check: CheckRegistration, object: "directx-advertiser", err: k.ReadyErr, why: "pods that request a GPU stay pending, or do not start", fix: fix})
		}
		return
	}
	reported := map[string]bool{}
	for _, d := range e.GPUs.List {
		prefix := strings.ToLower(d.InstanceID) + "::"
		listed := slices.ContainsFunc(k.Allocatable[d.Resource], func(id string) bool { return strings.HasPrefix(strings.ToLower(id), prefix) })
		if d.Resource == "" || d.Kind() == discovery.KindNone || !d.Health.OK() || listed || reported[d.Resource] {
			continue
		}
		reported[d.Resource] = true
		e.report(finding{
			check: CheckRegistration, object: d.Resource, problem: fmt.Sprintf("the kubelet does not list GPU %s as allocatable %s", d.Name(), d.Resource),
			why: "pods that request it stay pending, or share fewer GPUs", fix: fix,
		})
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
