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

	"github.com/directx-nri/directx-nri/cmd/dxctl/containerd"
	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/discovery/node"
	"github.com/directx-nri/directx-nri/internal/capabilities"
	"github.com/directx-nri/directx-nri/internal/containerdconfig"
	"github.com/directx-nri/directx-nri/internal/durable"
	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/readiness"
)

// Components that add GPUs to containers.
const (
	byNRI     = string(policy.ServedByNRI)
	byShim    = string(policy.ServedByShim)
	byKubelet = string(policy.InjectByKubelet)
)

// examination collects findings.
type examination struct {
	nodeState
	r Report
}

// examine returns the problems of a node: one finding for each cause, and none for its
// consequences.
func examine(n nodeState) Report {
	e := &examination{nodeState: n, r: Report{Version: n.Version, OS: n.OS, Role: RoleStandalone, ServedBy: n.servedBy(), Findings: []Finding{}}}
	if n.Kubelet != nil {
		e.r.Role = RoleKubernetes
	}
	e.setup()
	for _, f := range n.Files {
		e.report(f.kind, f.path, f.err)
	}
	e.config()
	if e.wsl(); e.has(CheckWSL) {
		return e.r // The remedy restarts everything.
	}
	e.gpus()
	e.windows()
	e.containerd()
	if e.served(byShim) {
		if n.Kubelet != nil {
			e.handlers()
		}
		e.shims()
	}
	if e.served(byNRI) {
		e.nri()
	}
	if n.Kubelet != nil && len(e.r.ServedBy) > 0 {
		e.kubelet()
	}
	return e.r
}

// servedBy returns the components that add GPUs to containers, none if directx-nri is
// not set up.
func (n nodeState) servedBy() []string {
	routed := slices.ContainsFunc(n.Containerd.Handlers, func(h handler) bool { return h.Routed || h.Loaded })
	hasShim := slices.ContainsFunc(n.Shims, func(s shimState) bool { return !errors.Is(s.Err, fs.ErrNotExist) })
	plugin := n.OS != "windows" && !errors.Is(n.NRIErr, readiness.ErrNotRunning)
	list := []string{}
	switch {
	case !routed && !hasShim && !plugin && !n.Config.Applied:
		return list
	case n.Kubelet == nil:
		return append(list, byShim)
	case n.Config.Policy.Injection == policy.InjectByKubelet:
		list = append(list, byKubelet)
	default:
		list = append(list, string(n.Config.Policy.ServedBy))
	}
	if routed && !slices.Contains(list, byShim) {
		list = append(list, byShim)
	}
	return list
}

// inventory returns the inventory file, "" if the GPUs are discovered.
func (e *examination) inventory() string { return e.Config.Policy.Source.Inventory }

func (e *examination) served(by string) bool { return slices.Contains(e.r.ServedBy, by) }

// has reports whether one of the checks has a finding.
func (e *examination) has(checks ...string) bool {
	return slices.ContainsFunc(e.r.Findings, func(f Finding) bool { return slices.Contains(checks, f.Check) })
}

// report adds a finding. A lack of permission is not a problem of the node, and the remedy that
// an error names takes precedence.
func (e *examination) report(k findingKind, object string, problem error) {
	f := Finding{Check: k.check, Severity: Problem, Object: object, Problem: problem.Error(), Why: k.why, Fix: k.fix}
	remedied := new(errlog.RemedyError)
	switch {
	case errors.Is(problem, fs.ErrPermission):
		f.Severity, f.Why, f.Fix = Unknown, "problems there are not detected", "run dxctl as root or an administrator"
	case errors.As(problem, &remedied):
		f.Problem, f.Fix = remedied.Err.Error(), remedied.Remedy
	}
	restart, remove := "run 'systemctl restart containerd'", "rm "+object
	switch {
	case e.OS == "windows":
		restart, remove = "in PowerShell: Restart-Service containerd", `del "`+object+`"`
	case strings.Contains(e.Containerd.Socket, "/k3s/"): // also on agents, and RKE2's
		restart = "restart the service of k3s or RKE2"
	}
	f.Fix = strings.NewReplacer("{config}", e.Config.Path, "{containerd}", e.Containerd.ConfigPath, "{restart}", restart, "{remove}", remove,
		"{inventory}", cmp.Or(e.inventory(), "the inventory file")).Replace(f.Fix)
	for _, text := range []*string{&f.Object, &f.Problem, &f.Why, &f.Fix} {
		*text = errlog.OneLine(*text)
	}
	e.r.Findings = append(e.r.Findings, f)
}

// setup reports a node that is not set up. One without a driver of GPUs has nothing to set up.
func (e *examination) setup() {
	denied := slices.ContainsFunc([]error{e.Containerd.Err, e.Containerd.FileErr, e.NRIErr, e.Config.Err},
		func(err error) bool { return errors.Is(err, fs.ErrPermission) })
	if len(e.r.ServedBy) > 0 || denied || errors.Is(e.GPUsErr, node.ErrNoInventory) {
		return
	}
	kind := notSetUp
	if e.OS == "linux" && e.Kubelet != nil {
		kind = notSetUpForKubelet
	}
	e.report(kind, "", errors.New("directx-nri is not set up on this node"))
}

func (e *examination) config() {
	c := e.Config
	switch {
	case c.Err != nil && !errors.Is(c.Err, durable.ErrNotPrivate):
		e.report(badPolicy, "the node policy", c.Err)
	case c.Invalid != nil:
		e.report(invalidConfig, c.Path, c.Invalid)
	case len(c.Stale) > 0:
		e.report(staleConfig, c.Path, errors.New(strings.Join(c.Stale, "; ")))
	}
}

func (e *examination) wsl() {
	w := e.WSL
	if w == nil {
		return
	}
	discovered := e.inventory() == ""
	stopped := e.Containerd.Err != nil || e.served(byNRI) && errors.Is(e.NRIErr, readiness.ErrNotRunning)
	switch {
	case discovered && !w.Driver:
		e.report(wslDriver, "/dev/dxg", fmt.Errorf("kernel %s of WSL has no /dev/dxg", w.Kernel))
	case discovered && !w.Libraries:
		e.report(wslLibraries, "/usr/lib/wsl/lib", errors.New("WSL has no libraries of GPU drivers: /usr/lib/wsl/lib does not exist"))
	case !w.Systemd && stopped:
		e.report(wslSystemd, "/etc/wsl.conf", errors.New("systemd, which starts containerd and directx-nri, does not run"))
	}
}

func (e *examination) gpus() {
	if e.GPUsErr != nil {
		e.discovery()
		return
	}
	var usable, without []string
	missing := map[string]bool{} // GPUs with the same driver have the same files.
	for _, d := range e.GPUs {
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
		e.report(noGPU, e.inventory(), errors.New("the node has no GPU that a container can have"))
	case len(without) == len(usable):
		e.report(noResource, abbreviate(without), errors.New("no configured resource matches a GPU of this node"))
	}
}

// discovery reports why the GPUs cannot be listed.
func (e *examination) discovery() {
	switch {
	case e.Config.Err != nil || e.has(CheckSetup):
	case errors.Is(e.GPUsErr, node.ErrNoInventory):
		e.report(noSource, "/dev/dxg", e.GPUsErr)
	case e.inventory() != "":
		e.report(badInventory, e.inventory(), e.GPUsErr)
	default:
		e.report(notListed, "the GPUs of this node", e.GPUsErr)
	}
}

func (e *examination) gpu(d gpu, reported map[string]bool) {
	windows := e.OS == "windows"
	name := "GPU " + strings.TrimSuffix(d.Name()+" ("+d.Description+")", " ()")
	kind := unusable
	if !windows && e.inventory() == "" {
		kind = unusableInVM
	}
	switch {
	case !d.Health.OK():
		e.report(kind, d.Name(), fmt.Errorf("%s is unhealthy: %s", name, d.Health))
	case d.Err != nil:
		e.report(kind, d.Name(), d.Err)
	case windows && len(d.System32) == 0 && e.DriverFiles != policy.FilesNone:
		e.report(kind, d.Name(), fmt.Errorf("%s has a driver without runtime files for containers", name))
	}
	missing := strings.Join(d.Missing, "\n")
	if missing != "" && !reported[missing] {
		e.report(missingFiles, d.Name(), fmt.Errorf("files of GPU %s are not on this node: %s", d.Name(), abbreviate(d.Missing)))
		e.r.Findings[len(e.r.Findings)-1].Files = d.Missing
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
		e.report(hcsHangs, "vmcompute", fmt.Errorf("the Host Compute Service does not answer: %w", err))
	case auto.Assignment == policy.AssignByClass && e.Config.Policy.Assignment == policy.AssignByPath:
		e.report(hcsAssigns, e.Windows.Windows.String(), errors.New(auto.Reason))
	case auto.Assignment == policy.AssignByPath && errors.Is(err, errors.ErrUnsupported):
		e.report(hcsIsMissing, "", fmt.Errorf("the Host Compute Service is not available: %w", err))
	}
}

func (e *examination) containerd() {
	e.containerdAnswer()
	c := e.Containerd
	for _, h := range c.Handlers {
		if h.IgnoresDevices() && e.Kubelet != nil {
			e.report(handlerIgnoresDevices, h.Name, fmt.Errorf("runtime handler %s runs a shim that starts containers without their devices", h.Name))
		}
	}
	if c.FileErr != nil {
		e.report(badFile, c.ConfigPath, c.FileErr)
	}
	for _, bad := range c.Imports {
		switch {
		case !errors.Is(bad, containerd.ErrOverridden):
			e.report(badImport, c.ConfigPath, bad)
		case e.served(byShim):
			e.report(overridden, c.ConfigPath, bad)
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
			e.report(containerdNoCRI, c.Socket, errors.New("containerd runs without its CRI plugin"))
		}
	case c.Err != nil:
		e.report(containerdStopped, c.Socket, fmt.Errorf("containerd does not answer: %w", c.Err))
	case known && (major < 1 || major == 1 && minor < 7):
		e.report(containerdOld, version, fmt.Errorf("containerd %s is older than 1.7", version))
	case known && major >= 2 && e.OS == "linux" && e.Kubelet != nil && shimOnly:
		e.report(containerdNew, version, fmt.Errorf("containerd %s on Linux runs the shim for a pod's sandbox only", version))
	}
}

func (e *examination) handlers() {
	if e.NotServed != nil {
		e.report(notServed, "", e.NotServed)
	}
	c := e.Containerd
	if c.FileErr != nil {
		return
	}
	var withoutAnnotations, stale, notEligible []string
	routed := false
	for _, h := range c.Handlers {
		routed = routed || h.Routed
		if h.NotEligible != "" {
			notEligible = append(notEligible, h.NotEligible)
		}
		if h.Routed && h.NotEligible != "" {
			e.report(handlerNotEligible, h.Name, fmt.Errorf("%s, and uses the runtime shim", h.NotEligible))
		}
		if h.Routed && !h.Annotations {
			withoutAnnotations = append(withoutAnnotations, h.Name)
		}
		if h.Routed != h.Loaded && c.Err == nil {
			stale = append(stale, h.Name)
		}
	}
	if names := strings.Join(withoutAnnotations, ", "); names != "" {
		e.report(noAnnotations, names, fmt.Errorf("runtime handler %s does not pass on %s", names, containerdconfig.AnnotationPattern))
	}
	names := strings.Join(stale, ", ")
	switch {
	case names != "":
		e.report(notLoaded, names, fmt.Errorf("the running containerd has not loaded runtime handler %s as %s configures it", names, c.ConfigPath))
	case !routed && len(notEligible) > 0 && len(notEligible) == len(c.Handlers):
		e.report(noEligibleHandler, c.ConfigPath, fmt.Errorf("no runtime handler can have GPUs: %s", strings.Join(notEligible, "; ")))
	case !routed && !e.has(CheckLeftovers):
		e.report(noHandler, c.ConfigPath, errors.New("no runtime handler uses the runtime shim"))
	}
}

func (e *examination) shims() {
	for _, s := range e.Shims {
		user := "ctr and nerdctl"
		if len(s.Handlers) > 0 {
			user = "runtime handler " + strings.Join(s.Handlers, ", ")
		}
		switch {
		// Pods use the shim of runtime_path; the one that ctr finds by name is optional.
		case len(s.Handlers) == 0 && e.Kubelet != nil:
		case errors.Is(s.Err, fs.ErrNotExist):
			e.report(noShim, s.Path, fmt.Errorf("the shim of %s does not exist", user))
		case errors.Is(s.Err, durable.ErrUntrusted):
			e.report(untrustedShim, s.Path, s.Err)
		case s.Err != nil:
			e.report(badShim, s.Path, fmt.Errorf("the shim of %s does not work: %w", user, s.Err))
		case s.Version != e.Version:
			e.report(otherVersion, s.Path, fmt.Errorf("the shim has version %s, and dxctl has version %s", s.Version, e.Version))
		case s.RealErr != nil && !e.has(CheckShim, CheckConfig):
			e.report(noRealShim, s.Path, errors.New(s.RealErr.Error())) // A lack of permission is a problem of the node.
		}
	}
}

func (e *examination) nri() {
	c := e.Containerd
	if e.has(CheckContainerd, CheckContainerdConfig) || c.Err != nil {
		return
	}
	disabled := c.FileErr == nil && !c.NRI && len(c.Imports) == 0 // An import may enable it.
	switch {
	case e.NRIErr == nil && disabled:
		e.report(nriDisabledNext, c.ConfigPath, fmt.Errorf("NRI is enabled in the running containerd and disabled in %s", c.ConfigPath))
	case e.NRIErr == nil || disabled && e.has(CheckLeftovers):
	case disabled:
		e.report(nriDisabled, c.ConfigPath, errors.New("NRI is disabled in containerd"))
	default:
		e.report(nriNotRegistered, "directx-nri", e.NRIErr)
	}
}

func (e *examination) kubelet() {
	k := e.Kubelet
	if k.RestartErr != nil {
		e.report(kubeletCannotRestart, "kubelet.exe", k.RestartErr)
	}
	switch {
	case k.SocketErr != nil:
		e.report(kubeletStopped, k.Dir, fmt.Errorf("the kubelet does not accept device plugins in %s: %w", k.Dir, k.SocketErr))
	case e.Config.Err != nil: // The names of the resources are unknown.
	case k.AdvertiserErr != nil:
		e.report(advertiserStopped, "directx-advertiser", fmt.Errorf("directx-advertiser does not answer in %s: %w", k.Dir, k.AdvertiserErr))
	case k.PodResourcesErr != nil:
		e.report(noPodResources, "PodResources", fmt.Errorf("the kubelet's PodResources API cannot be reached: %w", k.PodResourcesErr))
	// The advertiser advertises nothing that containers would not get.
	case len(e.GPUs) == 0 || e.has(CheckHandlers, CheckShim, CheckContainerd) && !e.served(byNRI) && !e.served(byKubelet):
	case e.OS != "windows" || len(k.Allocatable) > 0:
		e.registration(k.Allocatable)
	case k.ReadyErr != nil:
		e.report(notReady, "directx-advertiser", k.ReadyErr)
	}
}

// registration reports resources of which the kubelet does not list a GPU.
func (e *examination) registration(allocatable map[string][]string) {
	reported := map[string]bool{}
	for _, d := range e.GPUs {
		prefix := strings.ToLower(d.InstanceID) + "::"
		listed := slices.ContainsFunc(allocatable[d.Resource], func(id string) bool { return strings.HasPrefix(strings.ToLower(id), prefix) })
		if d.Resource == "" || d.Kind() == discovery.KindNone || !d.Health.OK() || listed || reported[d.Resource] {
			continue
		}
		reported[d.Resource] = true
		e.report(notAllocatable, d.Resource, fmt.Errorf("the kubelet does not list GPU %s as allocatable %s", d.Name(), d.Resource))
	}
}

// abbreviate returns the first elements of a list and the number of the others.
func abbreviate(list []string) string {
	const most = 3
	if len(list) <= most {
		return strings.Join(list, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(list[:most], ", "), len(list)-most)
}
