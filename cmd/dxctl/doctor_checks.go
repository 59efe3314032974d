package main

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
	"github.com/directx-nri/directx-nri/internal/access"
	"github.com/directx-nri/directx-nri/internal/cli"
	"github.com/directx-nri/directx-nri/internal/cri"
	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/readiness"
	"github.com/directx-nri/directx-nri/ocispec/modes"
	"github.com/directx-nri/directx-nri/shim/diversion"
)

type examiner struct {
	nodeState
	report doctorReport
}

// examine returns the problems of a node: one finding for each cause, and none for its
// consequences.
func examine(n nodeState) doctorReport {
	report := doctorReport{Version: n.Version, OS: n.OS, Role: roleStandalone, Injection: n.injection(), Findings: []finding{}}
	e := &examiner{nodeState: n, report: report}
	if n.Kubelet != nil {
		e.report.Role = roleKubernetes
	}
	e.checkSetup()
	for _, f := range n.Files {
		e.add(f.kind, f.path, f.err)
	}
	e.checkConfig()
	if e.checkWSL(); e.has(checkWSL) {
		return e.report // The remedy restarts everything.
	}
	e.checkGPUs()
	e.checkWindows()
	e.checkContainerd()
	if e.injects(policy.InjectByShim) {
		e.checkShim()
	}
	if e.injects(policy.InjectByNRI) {
		e.checkNRI()
	}
	if n.Kubelet != nil && e.report.Injection != "" {
		e.checkKubelet()
	}
	return e.report
}

// injection returns what adds GPUs to containers, "" if directx-nri is not set up.
func (n nodeState) injection() policy.Injection {
	plugin := n.OS != "windows" && !errors.Is(n.NRIErr, readiness.ErrNotRunning)
	switch {
	case isNotInstalled(n.Shim.Err) && !plugin && !n.Config.Applied:
		return ""
	case n.Kubelet == nil:
		return policy.InjectByShim
	}
	return cri.ResolveInjection(n.Config.Policy.Injection, n.OS, n.Containerd.Version)
}

// isNotInstalled reports whether err is that there is no runtime shim.
func isNotInstalled(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, diversion.ErrNotDiverted) || errors.Is(err, diversion.ErrNoShim) ||
		errors.Is(err, diversion.ErrUnknownDirectory) || errors.Is(err, diversion.ErrSeveralDirectories)
}

// inventory returns the inventory file, "" if the GPUs are discovered.
func (e *examiner) inventory() string { return e.Config.Policy.CompiledFrom.Inventory }

func (e *examiner) injects(by policy.Injection) bool { return e.report.Injection == by }

func (e *examiner) has(checks ...string) bool {
	return slices.ContainsFunc(e.report.Findings, func(f finding) bool { return slices.Contains(checks, f.Check) })
}

// add adds a finding. If dxctl lacks a permission, it is unknown whether the node has the problem.
// A remedy of the problem takes precedence over that of the kind.
func (e *examiner) add(k findingKind, object string, problem error) *finding {
	f := finding{Check: k.check, Severity: severityProblem, Object: object, Problem: problem.Error(), Effect: k.effect,
		Fix: cmp.Or(errlog.RemedyOf(problem), k.fix)}
	if errors.Is(problem, fs.ErrPermission) {
		f.Severity, f.Effect, f.Fix = severityUnknown, "problems there are not detected", "run dxctl as root or an administrator"
	}
	restart, remove := "run 'systemctl restart containerd'", "rm "+object
	switch {
	case e.OS == "windows":
		restart, remove = "reboot the node, or if nssm does not run containerd, run 'Restart-Service -Force containerd' in PowerShell", `del "`+object+`"`
	case strings.Contains(e.Containerd.Socket, "/k3s/"): // RKE2 has this socket, too.
		restart = "restart the service of k3s or RKE2"
	}
	f.Fix = strings.NewReplacer(
		"{config}", e.Config.Path, "{restart}", restart, "{remove}", remove,
		"{inventory}", cmp.Or(e.inventory(), "the inventory file")).Replace(f.Fix)
	for _, text := range []*string{&f.Object, &f.Problem, &f.Effect, &f.Fix} {
		*text = errlog.OneLine(*text)
	}
	e.report.Findings = append(e.report.Findings, f)
	return &e.report.Findings[len(e.report.Findings)-1]
}

// checkSetup reports a node that is not set up, unless it has no GPU driver.
func (e *examiner) checkSetup() {
	denied := slices.ContainsFunc([]error{e.Containerd.Err, e.Shim.Err, e.NRIErr, e.Config.Err},
		func(err error) bool { return errors.Is(err, fs.ErrPermission) })
	if e.report.Injection != "" || denied || errors.Is(e.GPUsErr, node.ErrNoSource) {
		return
	}
	kind := nodeNotSetUp
	if e.OS == "linux" && e.Kubelet != nil {
		kind = kubernetesNotSetUp
	}
	e.add(kind, "", errors.New("directx-nri is not set up on this node"))
}

func (e *examiner) checkConfig() {
	c := e.Config
	switch {
	case c.Err != nil && !errors.Is(c.Err, access.ErrNotPrivate):
		e.add(policyUnusable, "the node policy", c.Err)
	case c.Invalid != nil:
		e.add(configInvalid, c.Path, c.Invalid)
	case len(c.Stale) > 0:
		e.add(configStale, c.Path, errors.New(strings.Join(c.Stale, "; ")))
	}
}

func (e *examiner) checkWSL() {
	w := e.WSL
	if w == nil {
		return
	}
	discovered := e.inventory() == ""
	switch {
	case discovered && !w.Driver:
		e.add(wslDriverMissing, "/dev/dxg", fmt.Errorf("kernel %s of WSL has no /dev/dxg", w.Kernel))
	case discovered && !w.Libraries:
		e.add(wslLibrariesMissing, "/usr/lib/wsl/lib", errors.New("WSL has no libraries of GPU drivers: /usr/lib/wsl/lib does not exist"))
	case !w.Systemd && e.Containerd.Err != nil: // Another program can start containerd.
		e.add(wslSystemdStopped, "/etc/wsl.conf", errors.New("systemd, which starts containerd and directx-nri, does not run"))
	}
}

func (e *examiner) checkGPUs() {
	if e.GPUsErr != nil {
		e.checkDiscovery()
		return
	}
	var usable, withoutResource []string
	reported := map[string]bool{} // by missing files, because GPUs with the same driver lack the same files
	for _, d := range e.GPUs {
		if d.Kind() == discovery.KindNone {
			continue
		}
		usable = append(usable, d.Name())
		if d.Resource == "" && d.Err == nil {
			withoutResource = append(withoutResource, d.Name())
		}
		e.checkGPU(d, reported)
	}
	switch {
	case len(usable) == 0:
		e.add(noUsableGPU, e.inventory(), errors.New("the node has no GPU that a container can have"))
	case len(withoutResource) == len(usable):
		e.add(noMatchingResource, cli.Abbreviate(withoutResource, 3), errors.New("no configured resource matches a GPU of this node"))
	}
}

func (e *examiner) checkDiscovery() {
	switch {
	case e.Config.Err != nil || e.has(checkSetup):
	case errors.Is(e.GPUsErr, node.ErrNoSource):
		e.add(noGPUDriver, "/dev/dxg", e.GPUsErr)
	case e.inventory() != "":
		e.add(inventoryInvalid, e.inventory(), e.GPUsErr)
	default:
		e.add(gpusNotListed, "the GPUs of this node", e.GPUsErr)
	}
}

func (e *examiner) checkGPU(d gpu, reported map[string]bool) {
	windows := e.OS == "windows"
	name := "GPU " + strings.TrimSuffix(d.Name()+" ("+d.Description+")", " ()")
	kind := gpuUnusable
	if !windows && e.inventory() == "" {
		kind = gpuUnusableInVM
	}
	switch {
	case !d.Health.OK():
		e.add(kind, d.Name(), fmt.Errorf("%s is unhealthy: %s", name, d.Health))
	case d.Err != nil:
		e.add(kind, d.Name(), d.Err)
	case windows && len(d.System32) == 0 && e.DriverFiles != policy.FilesNone:
		e.add(kind, d.Name(), fmt.Errorf("%s has a driver without runtime files for containers", name))
	}
	missing := strings.Join(d.Missing, "\n")
	if missing != "" && !reported[missing] {
		f := e.add(driverFilesMissing, d.Name(),
			fmt.Errorf("files of GPU %s are not on this node: %s", d.Name(), cli.Abbreviate(d.Missing, 3)))
		f.Files = d.Missing
	}
	reported[missing] = true
}

func (e *examiner) checkWindows() {
	if e.Windows == nil {
		return
	}
	err := e.Windows.HCSErr
	auto := modes.Resolve(policy.Default(), e.OS, e.Windows.Version.Build)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		e.add(hcsHangs, "vmcompute", fmt.Errorf("the Host Compute Service does not answer: %w", err))
	case auto.Assignment == policy.AssignByClass && e.Config.Policy.Assignment == policy.AssignByPath:
		e.add(hcsCannotAssignByPath, e.Windows.Version.String(), errors.New(auto.AssignmentReason))
	case auto.Assignment == policy.AssignByPath && errors.Is(err, errors.ErrUnsupported):
		e.add(hcsMissing, "", fmt.Errorf("the Host Compute Service is not available: %w", err))
	}
}

// checkContainerd reports a daemon that does not answer, that is too old, or whose pods cannot have GPUs.
func (e *examiner) checkContainerd() {
	c := e.Containerd
	major, minor, known := cri.ParseVersion(c.Version)
	switch {
	case status.Code(c.Err) == codes.Unimplemented:
		if e.Kubelet != nil {
			e.add(containerdWithoutCRI, c.Socket, errors.New("containerd runs without its CRI plugin"))
		}
	case c.Err != nil:
		e.add(containerdStopped, c.Socket, fmt.Errorf("containerd does not answer: %w", c.Err))
	case known && (major < 1 || major == 1 && minor < 7):
		e.add(containerdTooOld, c.Version, fmt.Errorf("containerd %s is older than 1.7", c.Version))
	case e.Kubelet == nil || e.report.Injection == "":
	case e.injects(policy.InjectByShim) && cri.BypassesShim(c.Version):
		e.add(containerdSkipsShim, c.Version, fmt.Errorf("containerd %s runs no shim for the containers of pods", c.Version))
	case c.HandlersErr != nil:
		e.add(handlersUnusable, c.Socket, c.HandlersErr)
	}
}

func (e *examiner) checkShim() {
	s := e.Shim
	kubernetes := e.Kubelet != nil
	if kubernetes && s.BypassErr != nil {
		e.add(shimBypassed, "", s.BypassErr)
	}
	switch {
	case s.Err == nil && s.Version != e.Version:
		e.add(shimVersionDiffers, s.Path, fmt.Errorf("the shim has version %s, and dxctl has version %s", s.Version, e.Version))
	case s.Err == nil:
	case errors.Is(s.Err, access.ErrUntrusted):
		e.add(shimUntrusted, s.Path, s.Err)
	case errors.Is(s.Err, diversion.ErrInterrupted), errors.Is(s.Err, diversion.ErrBroken):
		e.add(shimBroken, s.Path, s.Err)
	case !isNotInstalled(s.Err) && !errors.Is(s.Err, diversion.ErrOverwritten):
		e.add(shimFails, s.Path, s.Err)
	case !kubernetes:
		e.add(shimMissing, s.Path, s.Err)
	case len(e.GPUs) > 0: // Without a GPU, directx-advertiser does not install it.
		e.add(shimNotInPlace, s.Path, s.Err)
	}
}

func (e *examiner) checkNRI() {
	switch {
	case e.NRIErr == nil || e.has(checkContainerd) || e.Config.Err != nil: // The plugin reads the policy, too.
	case errors.Is(e.NRIErr, readiness.ErrNotRunning) && e.NRISocketErr != nil: // A plugin that runs knows more.
		e.add(nriDisabled, "NRI", cri.WithNRIRemedy(e.NRISocketErr))
	default:
		e.add(nriNotRegistered, "directx-nri", e.NRIErr)
	}
}

func (e *examiner) checkKubelet() {
	k := e.Kubelet
	switch {
	case k.SocketErr != nil:
		e.add(kubeletStopped, k.Dir, fmt.Errorf("the kubelet does not accept device plugins in %s: %w", k.Dir, k.SocketErr))
	case e.Config.Err != nil: // The names of the resources are unknown.
	case k.AdvertiserErr != nil:
		e.add(advertiserStopped, "directx-advertiser", fmt.Errorf("directx-advertiser does not answer in %s: %w", k.Dir, k.AdvertiserErr))
	case k.PodResourcesErr != nil:
		e.add(podResourcesUnreachable, "PodResources",
			fmt.Errorf("the kubelet's PodResources API cannot be reached: %w", k.PodResourcesErr))
	// The advertiser does not advertise GPUs that containers would not get.
	case len(e.GPUs) == 0 || e.injects(policy.InjectByShim) && e.has(checkHandlers, checkShim, checkContainerd):
	case k.ReadyErr != nil:
		e.add(advertiserNotReady, "directx-advertiser", k.ReadyErr)
	case e.OS != "windows" || len(k.Allocatable) > 0:
		e.checkRegistration(k.Allocatable)
	}
}

// checkRegistration reports the resources for which the kubelet does not list all GPUs.
func (e *examiner) checkRegistration(allocatable map[string][]string) {
	reported := map[string]bool{}
	for _, d := range e.GPUs {
		prefix := discovery.NormalizeID(d.InstanceID) + "::"
		listed := slices.ContainsFunc(allocatable[d.Resource],
			func(id string) bool { return strings.HasPrefix(discovery.NormalizeID(id), prefix) })
		if d.Resource == "" || d.Kind() == discovery.KindNone || !d.Health.OK() || listed || reported[d.Resource] {
			continue
		}
		reported[d.Resource] = true
		e.add(gpuNotAllocatable, d.Resource, fmt.Errorf("the kubelet does not list GPU %s as allocatable %s", d.Name(), d.Resource))
	}
}
