package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/directx-nri/directx-nri/advertiser/config"
	"github.com/directx-nri/directx-nri/advertiser/resources"
	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/discovery/hostfiles"
	"github.com/directx-nri/directx-nri/discovery/node"
	"github.com/directx-nri/directx-nri/discovery/nvidia"
	"github.com/directx-nri/directx-nri/internal/access"
	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/cri"
	"github.com/directx-nri/directx-nri/internal/durable"
	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/readiness"
	"github.com/directx-nri/directx-nri/internal/win32"
	"github.com/directx-nri/directx-nri/ocispec/gpuedits"
	"github.com/directx-nri/directx-nri/ocispec/modes"
	"github.com/directx-nri/directx-nri/shim/diversion"
	"github.com/directx-nri/directx-nri/shim/shimfile"
)

// setup is how containers of a node get GPUs.
type setup string

const (
	setupKubernetes setup = "Kubernetes"
	setupCDI        setup = "CDI specification"
	setupStandalone setup = "runtime shim, without Kubernetes"
)

// nodeState has what several checks depend on. What could not be read has an error.
type nodeState struct {
	doctorOptions

	os            string
	policy        policy.Policy
	policyErr     error
	containerd    cri.Config
	containerdErr error
	gpus          []resources.Device
	gpusErr       error
}

func readNode(ctx context.Context, o doctorOptions) nodeState {
	n := nodeState{doctorOptions: o, os: runtime.GOOS}
	n.containerd, n.containerdErr = withTimeout(ctx, o.timeout, func(ctx context.Context) (cri.Config, error) {
		return cri.ReadConfig(ctx, o.criSocket)
	})
	n.policy, n.policyErr = withTimeout(ctx, o.timeout, func(context.Context) (policy.Policy, error) { return policy.Read(o.stateDir) })
	if n.policyErr != nil {
		n.policy, n.gpusErr = policy.Default(), n.policyErr
		return n
	}
	n.gpus, n.gpusErr = withTimeout(ctx, o.timeout, func(ctx context.Context) ([]resources.Device, error) {
		source, err := node.Open(node.Options{
			UseInventory: n.policy.UseInventory, StateDir: o.stateDir, HostRoot: o.hostRoot, UUIDs: nvidia.NewUUIDs(o.hostRoot),
		})
		if err != nil {
			return nil, err
		}
		source, _ = modes.ResolvePolicy(source, n.policy, n.os)
		devices, err := source.Devices(ctx)
		return resources.Match(devices, n.policy, n.os), err
	})
	return n
}

// setup returns the set-up of the node. The kubelet's directory exists even while the kubelet is stopped. A machine
// with a kubelet and CDI can use the latter alone: the advertiser would have written the policy.
func (n nodeState) setup() setup {
	kubelet, hasCDI := durable.Exists(n.kubeletDir), durable.Exists(n.cdiFile) || durable.Exists(n.cdiUnit)
	switch {
	case kubelet && (!hasCDI || durable.Exists(policy.Path(n.stateDir))):
		return setupKubernetes
	case hasCDI && !durable.Exists(filepath.Join(n.shimDir, shimfile.FileName())):
		return setupCDI
	}
	return setupStandalone
}

// injection returns what adds GPUs to containers, "" with CDI only.
func (n nodeState) injection() policy.Injection {
	switch n.setup() {
	case setupCDI:
		return ""
	case setupStandalone:
		return policy.InjectByShim
	}
	return cri.ResolveInjection(n.policy.Injection, n.os, n.containerd.Version)
}

// offersGPU reports whether a resource offers one of the GPUs.
func (n nodeState) offersGPU() bool {
	return slices.ContainsFunc(n.gpus, func(d resources.Device) bool { return d.Rule != nil })
}

// checks returns all checks, in the order in which a container gets its GPU.
func checks() []check {
	return []check{
		{name: "system", run: checkSystem},
		{name: "policy", run: checkPolicy},
		{name: "config", run: checkConfig, needs: []string{"policy"}},
		{name: "gpu", run: checkGPUs, needs: []string{"policy"}},
		{name: "cdi", run: checkCDI, needs: []string{"gpu"}},
		{name: "containerd", run: checkContainerd, needs: []string{"policy"}},
		{name: "shim", run: checkShim, needs: []string{"policy"}},
		{name: "nri", run: checkNRI, needs: []string{"policy", "containerd"}},
		{name: "kubelet", run: checkKubelet},
		{name: "advertiser", run: checkAdvertiser, needs: []string{"policy", "containerd", "shim", "nri", "kubelet"}},
		{name: "records", run: checkRecords},
	}
}

// checkSystem prints the facts of a node, and checks that Windows can assign GPUs as configured.
func checkSystem(_ context.Context, n nodeState) []finding {
	facts := []string{string(n.setup()), "dxctl " + n.version + " for " + n.os + "/" + runtime.GOARCH}
	if injection := n.injection(); injection != "" {
		facts = append(facts, "injection by "+string(injection))
	}
	if n.os != "windows" {
		kernel, _ := durable.Read("/proc/sys/kernel/osrelease", 4<<10)
		return passed("%s", strings.Join(append(facts, "kernel "+string(kernel)), ", "))
	}
	build := win32.WindowsBuild()
	hcs, err := win32.HCSProperties()
	chosen, supported := modes.Resolve(n.policy, n.os, build), modes.Resolve(policy.Default(), n.os, build)
	findings := passed("%s", strings.Join(append(facts, win32.WindowsVersion(), chosen.AssignmentReason, chosen.DriverFilesReason, hcs), ", "))
	switch byPath := supported.Assignment == policy.AssignByPath; {
	case !byPath && chosen.Assignment == policy.AssignByPath:
		findings = append(findings, failed(errors.New(supported.AssignmentReason), "set assignmentMode: auto")...)
	case byPath && err != nil: // Windows Server 2019 does not have these properties.
		findings = append(findings, failed(err, "install the Windows feature Containers, or restart the service vmcompute")...)
	}
	return findings
}

func checkPolicy(_ context.Context, n nodeState) []finding {
	return passedUnless([]error{n.policyErr}, "%s, or without it the defaults", policy.Path(n.stateDir))
}

// checkConfig checks what the policy was compiled from, and the directories that it lets pods have files of. Other
// accounts must not be able to change them.
func checkConfig(_ context.Context, n nodeState) []finding {
	compiler := config.Compiler{File: paths.Default().Config, StateDir: n.stateDir, NodeOS: n.os}
	errs := []error{errlog.WithRemedy(compiler.CheckSources(n.policy), "run 'dxctl config apply', or start directx-advertiser")}
	if n.policy.ExtraMounts.Sources == policy.MountSourcesHostDirectories {
		for _, dir := range n.policy.ExtraMounts.HostDirectories {
			dir, _, err := hostfiles.Root(n.hostRoot).Resolve(dir)
			if err == nil {
				_, err = access.CheckTrusted(n.hostRoot, dir)
			}
			errs = append(errs, err)
		}
	}
	return passedUnless(errs, "the policy is up to date with %s", cmp.Or(n.policy.CompiledFrom.Config, compiler.File))
}

func checkGPUs(_ context.Context, n nodeState) (findings []finding) {
	switch {
	case errors.Is(n.gpusErr, node.ErrNoSource):
		return noGPU(n, n.gpusErr, "in WSL, see docs/wsl.md; in Hyper-V, assign a GPU to this VM (GPU-PV) and load the module dxgkrnl; for other GPUs, run 'dxctl config apply --inventory FILE'")
	case n.gpusErr != nil:
		return failed(n.gpusErr, "check the GPU's driver")
	}
	var others []string
	for _, d := range n.gpus {
		if d.Kind() == discovery.KindNone { // It is common, such as a display of Hyper-V.
			others = append(others, d.Name()+": "+d.Reason)
		} else {
			findings = append(findings, checkGPU(n, d)...)
		}
	}
	switch {
	case len(findings) == 0:
		err := fmt.Errorf("the node has no GPU that a container can have: %s", cmp.Or(strings.Join(others, "; "), "there is none"))
		return noGPU(n, err, "install the GPU's driver, or complete the inventory")
	case n.setup() == setupKubernetes && !n.offersGPU():
		none := failed(errors.New("no GPU is offered"), "compare 'dxctl devices -o wide' with resources in the configuration")
		return append(findings, none...)
	}
	return findings
}

// noGPU returns the finding of a node without a GPU. In Kubernetes, directx-advertiser is ready there, too.
func noGPU(n nodeState, err error, remedy string) []finding {
	findings := failed(err, remedy)
	if n.setup() == setupKubernetes {
		findings[0].mark = markUnknown
	}
	return findings
}

// checkGPU makes the edits for a container with the GPU.
func checkGPU(n nodeState, d resources.Device) []finding {
	name := strings.TrimSuffix(d.Name()+" ("+d.Description+")", " ()")
	_, resolved := modes.ResolvePolicy(discovery.Static(nil), n.policy, n.os)
	edits, skipped, err := gpuedits.Build(n.os, []discovery.Device{d.Device}, nil, hostfiles.Root(n.hostRoot), resolved)
	switch {
	case !d.Health.OK():
		return failed(fmt.Errorf("%s is unhealthy: %s", name, d.Health), "")
	case err != nil:
		return failed(err, "")
	case len(skipped) > 0:
		return failed(fmt.Errorf("containers get %s without some files: %s", name, strings.Join(skipped, "; ")),
			"reinstall the driver, or correct the inventory")
	case d.Rule == nil:
		return passed("%s is not offered: %s", name, d.Reason)
	}
	findings := passed("%s, with %d mounts, as %s", name, len(edits.Mounts), d.Rule.Name)
	for _, note := range d.Notes {
		findings = append(findings, finding{mark: markUnknown, text: errlog.OneLine(name + ": " + note)})
	}
	return findings
}

func checkCDI(_ context.Context, n nodeState) []finding {
	if n.setup() != setupCDI {
		return nil
	}
	if !durable.Exists(n.cdiFile) {
		return failed(fmt.Errorf("there is no file %s", n.cdiFile), "start directx-cdi, or see its log")
	}
	return passed("%s", n.cdiFile)
}

// checkContainerd reports a daemon that does not answer, that is too old, or whose pods cannot have GPUs.
func checkContainerd(_ context.Context, n nodeState) []finding {
	kubernetes, c, err := n.setup() == setupKubernetes, n.containerd, n.containerdErr
	if n.setup() == setupCDI {
		return nil
	}
	switch {
	case !kubernetes && status.Code(err) == codes.Unimplemented:
		return passed("it runs without its CRI plugin")
	case err != nil:
		return failed(fmt.Errorf("containerd does not answer: %w", err), "start it, see its log, or set --cri-socket")
	case kubernetes && n.injection() == policy.InjectByShim && cri.BypassesShim(c.Version):
		return failed(fmt.Errorf("containerd %s runs no shim for the containers of pods", c.Version),
			"set injection: auto, or update containerd")
	case kubernetes && c.Check(n.os) != nil:
		return failed(c.Check(n.os), "")
	}
	return passed("%s", c.Version)
}

func checkShim(ctx context.Context, n nodeState) []finding {
	if n.injection() != policy.InjectByShim {
		return nil
	}
	kubernetes, remedy := n.setup() == setupKubernetes, "run 'dxctl runtime install', or for CDI 'dxctl cdi generate --file "+n.cdiFile+"'"
	if kubernetes {
		remedy = "see the log of directx-advertiser"
	}
	path, version, err := readShim(ctx, n.shimDir)
	bypassErr := shimfile.CheckBypass(n.stateDir)
	noContainerStarts := errors.Is(err, diversion.ErrInterrupted) || errors.Is(err, diversion.ErrBroken)
	switch {
	case kubernetes && !n.offersGPU() && !noContainerStarts:
		return passed("it need not be in its place, because the node offers no GPU")
	case err != nil:
		return failed(err, remedy)
	case kubernetes && bypassErr != nil:
		return failed(bypassErr, "use the shim of io.containerd.runhcs.v1, or if the shim honors devices, set injection: kubelet; see docs/limits.md")
	case version != n.version:
		return failed(fmt.Errorf("%s has version %s, and dxctl has version %s", path, version, n.version), remedy)
	}
	return passed("%s, version %s", path, version)
}

func checkNRI(ctx context.Context, n nodeState) []finding {
	if n.injection() != policy.InjectByNRI {
		return nil
	}
	err := readiness.CheckPlugin(ctx, n.runtimeDir)
	if err == nil { // Another account could pretend to be the plugin.
		err = access.CheckPrivate(n.runtimeDir)
	}
	return passedUnless([]error{errlog.WithRemedy(err, "start directx-nri, or see its log")}, "the plugin is registered with containerd")
}

func checkKubelet(ctx context.Context, n nodeState) []finding {
	if n.setup() != setupKubernetes {
		return nil
	}
	if err := dialUnix(ctx, filepath.Join(n.kubeletDir, "kubelet.sock")); err != nil {
		return failed(fmt.Errorf("the kubelet does not accept device plugins: %w", err), "start the kubelet, or set --kubelet-dir")
	}
	return passed("it accepts device plugins")
}

// dialUnix returns why no process listens on a Unix socket.
func dialUnix(ctx context.Context, path string) error {
	connection, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err != nil {
		return err
	}
	return connection.Close()
}

// checkAdvertiser checks that directx-advertiser is ready, if it reports that, and serves each resource that has a
// healthy GPU.
func checkAdvertiser(ctx context.Context, n nodeState) []finding {
	if n.setup() != setupKubernetes {
		return nil
	}
	const remedy = "start directx-advertiser, or see its log"
	if err := readReadiness(ctx, n.policy.Metrics.Address); err != nil {
		return failed(err, remedy)
	}
	count := 0
	for _, d := range n.gpus {
		if d.Rule == nil || !d.Health.OK() {
			continue
		}
		count++
		if err := dialUnix(ctx, filepath.Join(n.kubeletDir, paths.SocketName(d.Rule.Name))); err != nil {
			err = fmt.Errorf("directx-advertiser does not offer %s: %w", d.Rule.Name, err)
			return failed(err, remedy)
		}
	}
	return passed("it offers %d healthy GPU(s)", count)
}

// readReadiness returns why directx-advertiser is not ready, if it serves its health at address. It is silent about
// other answers: in a pod, the address is in another network, where another program may answer.
func readReadiness(ctx context.Context, address string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/readyz", http.NoBody)
	if err != nil {
		return nil
	}
	answer, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(request) // Without a proxy.
	if err != nil {
		return nil
	}
	defer func() { _ = answer.Body.Close() }()
	if text, _ := io.ReadAll(io.LimitReader(answer.Body, 4<<10)); answer.StatusCode == http.StatusServiceUnavailable {
		return fmt.Errorf("directx-advertiser is not ready: %s", bytes.TrimSpace(text))
	}
	return nil
}

// checkRecords reads the allocation records.
func checkRecords(ctx context.Context, n nodeState) []finding {
	entries, problems, err := allocation.OpenStore(paths.Allocations(n.stateDir)).List(ctx)
	errs := []error{err}
	for _, p := range problems {
		errs = append(errs, errlog.WithRemedy(p, "delete its pod, then the file"))
	}
	return passedUnless(errs, "%d allocation(s) can be read", len(entries))
}
