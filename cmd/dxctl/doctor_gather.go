package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/directx-nri/directx-nri/advertiser/config"
	"github.com/directx-nri/directx-nri/discovery/hostfiles"
	"github.com/directx-nri/directx-nri/discovery/node"
	"github.com/directx-nri/directx-nri/internal/access"
	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/cli"
	"github.com/directx-nri/directx-nri/internal/cri"
	"github.com/directx-nri/directx-nri/internal/durable"
	"github.com/directx-nri/directx-nri/internal/localgrpc"
	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/readiness"
	"github.com/directx-nri/directx-nri/internal/win32"
	"github.com/directx-nri/directx-nri/ocispec/gpuedits"
	"github.com/directx-nri/directx-nri/ocispec/modes"
)

// gatherer reads the state of a node for doctor and capabilities.
type gatherer struct {
	version                                             string // dxctl's
	nodeOS                                              string
	stateDir, shimDir, runtimeDir, criSocket, nriSocket string
	timeout                                             time.Duration
	output                                              string
	// These fields are for doctor only. hostRoot is the node's root directory, "" for this
	// system's. reportFile is the file for a bug report, "" for none.
	kubeletDir, podResources, hostRoot, reportFile string
}

// addFlags adds the flags that doctor and capabilities have in common.
func (g *gatherer) addFlags(command *cobra.Command, outputs ...string) {
	flags := command.Flags()
	defaults := paths.Default()
	g.nodeOS = runtime.GOOS
	flags.StringVar(&g.criSocket, "cri-socket", defaults.CRI, "containerd's CRI `SOCKET` or named pipe")
	if g.nodeOS != "windows" {
		flags.StringVar(&g.nriSocket, "nri-socket", defaults.NRI, "containerd's NRI `SOCKET`")
	}
	flags.StringVar(&g.stateDir, "state-dir", defaults.State, "state `DIRECTORY`")
	addShimDirFlag(flags, &g.shimDir)
	flags.StringVar(&g.runtimeDir, "runtime-dir", defaults.Runtime, "runtime `DIRECTORY` of directx-nri")
	flags.DurationVar(&g.timeout, "timeout", 5*time.Second, "limit for each query")
	cli.AddOutputFlag(command, &g.output, outputs...)
}

// CheckFlags returns an error about flags that cannot be used.
func (g *gatherer) CheckFlags() error {
	if g.timeout <= 0 {
		return cli.UsageError("--timeout %s is not positive", g.timeout)
	}
	return nil
}

// gather returns the state of the node. After gatherRuntime, all queries run concurrently.
func (g *gatherer) gather(ctx context.Context) nodeState {
	state := g.gatherRuntime(ctx)
	var group sync.WaitGroup
	group.Go(func() {
		state.GPUs, state.GPUsErr = withTimeout(ctx, g.timeout,
			func(ctx context.Context) ([]gpu, error) { return g.readGPUs(ctx, state.Config) })
	})
	group.Go(func() { state.Kubelet = g.readKubelet(ctx, state.Config.Policy) })
	group.Go(func() {
		var err error
		state.Files, err = withTimeout(ctx, g.timeout,
			func(ctx context.Context) ([]fileProblem, error) { return g.checkFiles(ctx, state.Config), nil })
		if err != nil {
			state.Files = []fileProblem{{filesHang, g.stateDir, fmt.Errorf("check the files of directx-nri: %w", err)}}
		}
	})
	group.Wait()
	return state
}

// gatherRuntime returns the state of the configuration, Windows, containerd, the shim and the
// NRI plugin.
func (g *gatherer) gatherRuntime(ctx context.Context) nodeState {
	state := nodeState{OS: g.nodeOS, Version: g.version, NRIErr: readiness.ErrNotRunning, WSL: readWSL(cmp.Or(g.hostRoot, "/"))}
	var group sync.WaitGroup
	group.Go(func() { state.Containerd = g.readContainerd(ctx) })
	group.Go(func() { state.Shim = readShim(ctx, g.shimDir, g.stateDir, g.timeout) })
	if g.nodeOS == "windows" {
		group.Go(func() {
			c, err := withTimeout(ctx, g.timeout, func(context.Context) (windowsState, error) { return readWindows(), nil })
			if err != nil {
				c.Version.Build, c.HCSErr = win32.WindowsBuild(), err
			}
			state.Windows = &c
		})
	} else {
		group.Go(func() {
			state.NRIErr = readiness.CheckPlugin(ctx, g.runtimeDir)
			state.NRISocketErr = checkListening(ctx, g.nriSocket)
		})
	}
	var err error
	state.Config, err = withTimeout(ctx, g.timeout, func(context.Context) (configState, error) { return g.readPolicy(), nil })
	if err != nil {
		state.Config = configState{Path: paths.Default().Config, Policy: policy.Default(), Err: fmt.Errorf("read node policy: %w", err)}
	}
	group.Wait()
	state.Modes = modes.Resolve(state.Config.Policy, g.nodeOS, win32.WindowsBuild())
	state.makeErrorsMarshalable()
	return state
}

// withTimeout returns the result of query, or an error after limit. A driver, a Windows service or
// a disk that hangs cannot be interrupted, so query continues in the background.
func withTimeout[T any](ctx context.Context, limit time.Duration, query func(context.Context) (T, error)) (result T, err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	type answer struct {
		result T
		err    error
	}
	answers := make(chan answer, 1)
	go func() {
		result, err := query(ctx)
		answers <- answer{result, err}
	}()
	select {
	case a := <-answers:
		return a.result, a.err
	case <-ctx.Done():
		return result, fmt.Errorf("no answer: %w", ctx.Err())
	}
}

func (g *gatherer) readPolicy() configState {
	c := configState{Path: paths.Default().Config, Policy: policy.Default(), Applied: durable.Exists(policy.Path(g.stateDir))}
	p, err := policy.Read(g.stateDir)
	if err != nil {
		c.Err = err
		return c
	}
	c.Policy, c.Path = p, cmp.Or(p.CompiledFrom.Config, c.Path)
	if c.Stale = config.WhyStale(c.Policy, c.Path); len(c.Stale) > 0 {
		_, c.Invalid = config.Compiler{File: c.Path, StateDir: g.stateDir, NodeOS: g.nodeOS}.Compile()
	}
	return c
}

func (g *gatherer) readGPUs(ctx context.Context, c configState) ([]gpu, error) {
	if c.Err != nil {
		return nil, c.Err
	}
	source, err := node.Open(node.Options{
		UseInventory: c.Policy.UseInventory, StateDir: g.stateDir, HostRoot: g.hostRoot, QueryDriver: true,
	})
	if err != nil {
		return nil, err
	}
	source, p := modes.ResolvePolicy(source, c.Policy, g.nodeOS)
	devices, err := source.Devices(ctx)
	var list []gpu
	for i, r := range newGPUReports(devices, c.Policy, g.nodeOS) {
		d := gpu{Device: devices[i], Resource: r.Resource}
		var notes []gpuedits.SkippedFile
		_, notes, d.Err = gpuedits.Build(g.nodeOS, devices[i:i+1], nil, hostfiles.Root(g.hostRoot), p)
		for _, note := range notes {
			if !note.Minor {
				d.Missing = append(d.Missing, note.Source)
			}
		}
		list = append(list, d)
	}
	return list, err
}

func (g *gatherer) readContainerd(ctx context.Context) containerdState {
	var config cri.Config
	err := g.withConnection(ctx, g.criSocket, func(ctx context.Context, _ *grpc.ClientConn) (err error) {
		config, err = cri.ReadConfig(ctx, g.criSocket)
		return err
	})
	if err != nil {
		return containerdState{Socket: g.criSocket, Version: config.Version, Err: err}
	}
	return newContainerdState(g.criSocket, g.nodeOS, config)
}

// withConnection calls do with a connection to a socket. Its errors match those of [os] and
// [context].
func (g *gatherer) withConnection(ctx context.Context, socket string, do func(context.Context, *grpc.ClientConn) error) error {
	ctx, cancel := context.WithTimeout(ctx, g.timeout)
	defer cancel()
	if err := checkListening(ctx, socket); err != nil {
		return err
	}
	connection, err := localgrpc.Dial(socket)
	if err != nil {
		return err
	}
	defer connection.Close()
	err = do(ctx, connection)
	if err != nil && strings.Contains(err.Error(), "Access is denied") {
		return fmt.Errorf("%w: %w", err, fs.ErrPermission)
	}
	return err
}

// checkListening returns why no process listens on a Unix socket, because the errors of gRPC do not
// have the cause. It returns nil for a named pipe.
func checkListening(ctx context.Context, address string) error {
	path, isPipe := localgrpc.ParseAddress(address)
	if isPipe {
		return nil
	}
	connection, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err != nil {
		return err
	}
	return connection.Close()
}

// readKubelet returns the state of the kubelet, nil on a node without Kubernetes. The kubelet's
// directory exists even while the kubelet is stopped.
func (g *gatherer) readKubelet(ctx context.Context, p policy.Policy) *kubeletState {
	if _, err := os.Stat(g.kubeletDir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	k := &kubeletState{Dir: g.kubeletDir, Allocatable: map[string][]string{}}
	k.SocketErr = checkListening(ctx, filepath.Join(g.kubeletDir, "kubelet.sock"))
	k.PodResourcesErr = g.withConnection(ctx, g.podResources, func(ctx context.Context, connection *grpc.ClientConn) error {
		answer, err := podresources.NewPodResourcesListerClient(connection).GetAllocatableResources(ctx,
			&podresources.AllocatableResourcesRequest{})
		for _, devices := range answer.GetDevices() {
			k.Allocatable[devices.GetResourceName()] = append(k.Allocatable[devices.GetResourceName()], devices.GetDeviceIds()...)
		}
		return err
	})
	for _, resource := range p.Resources {
		err := g.withConnection(ctx, filepath.Join(g.kubeletDir, paths.SocketName(resource.Name)),
			func(ctx context.Context, connection *grpc.ClientConn) error {
				_, err := v1beta1.NewDevicePluginClient(connection).GetDevicePluginOptions(ctx, &v1beta1.Empty{})
				return err
			})
		if err != nil {
			k.AdvertiserErr = fmt.Errorf("%s: %w", resource.Name, err)
			break
		}
	}
	if len(k.Allocatable) == 0 || k.AdvertiserErr != nil {
		g.checkAdvertiser(ctx, p.Metrics.Address, k)
	}
	return k
}

// checkAdvertiser queries directx-advertiser at the address of its metrics, and sets why it is not
// ready. If it answers there, it can be without sockets: it waits until the node has a GPU.
func (g *gatherer) checkAdvertiser(ctx context.Context, address string, k *kubeletState) {
	ctx, cancel := context.WithTimeout(ctx, g.timeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/readyz", nil)
	if address == "" || err != nil {
		return // It serves no metrics.
	}
	answer, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(request) // Without a proxy.
	if err != nil {
		return // AdvertiserErr reports that it does not answer.
	}
	defer func() { _ = answer.Body.Close() }()
	const limit = 4 << 10
	text, err := io.ReadAll(io.LimitReader(answer.Body, limit))
	switch {
	case err != nil:
		k.ReadyErr = err
	case answer.StatusCode == http.StatusServiceUnavailable:
		k.AdvertiserErr, k.ReadyErr = nil, fmt.Errorf("directx-advertiser is not ready: %s", bytes.TrimSpace(text))
	case string(text) == "ok\n": // Another program may serve this address.
		k.AdvertiserErr = nil
	}
}

// checkFiles returns the problems of the files on which the decisions for containers depend.
func (g *gatherer) checkFiles(ctx context.Context, c configState) (problems []fileProblem) {
	add := func(kind findingKind, path string, err error) {
		if err != nil {
			problems = append(problems, fileProblem{kind, path, err})
		}
	}
	checkAccess := func(check func(string) error, files ...string) {
		for _, path := range files {
			if path != "" && durable.Exists(path) {
				add(writableByOthers, path, check(path))
			}
		}
	}
	checkAccess(access.CheckPrivate, g.stateDir, g.runtimeDir)
	if g.nodeOS != "windows" { // There, the kubelet's directory inherits that all users can add files.
		checkAccess(access.CheckPrivate, g.kubeletDir)
	}
	checkAccess(config.CheckAccess, c.Path, c.Policy.CompiledFrom.Inventory)
	if c.Policy.ExtraMounts.Sources == policy.MountSourcesHostDirectories {
		for _, dir := range c.Policy.ExtraMounts.HostDirectories {
			add(hostDirectoryUntrusted, dir, access.CheckDirectory(filepath.Join(g.hostRoot, dir)))
		}
	}
	dir := paths.Allocations(g.stateDir)
	_, damaged, err := allocation.OpenStore(dir).List(ctx)
	add(recordUnusable, dir, err)
	for _, p := range damaged {
		add(recordUnusable, p.Path, fmt.Errorf("an allocation record cannot be used: %w", p.Err))
	}
	return problems
}

func readWindows() windowsState {
	properties, err := win32.HCSProperties()
	return windowsState{Version: win32.WindowsVersion(), HCSErr: err, HCSSchemas: schemas(properties)}
}

// schemas returns the supported versions in basic properties of HCS.
// https://learn.microsoft.com/virtualization/api/hcs/schemareference#BasicInformation
func schemas(properties string) (versions []string) {
	var basic struct {
		Properties []struct {
			SupportedSchemaVersions []struct{ Major, Minor uint32 }
		}
	}
	if err := json.Unmarshal([]byte(properties), &basic); err != nil {
		return nil
	}
	for _, p := range basic.Properties {
		for _, v := range p.SupportedSchemaVersions {
			versions = append(versions, fmt.Sprintf("%d.%d", v.Major, v.Minor))
		}
	}
	return versions
}

// readWSL returns what GPUs in WSL depend on, nil if root is not that of WSL.
// https://github.com/microsoft/WSL/issues/423#issuecomment-221627364
func readWSL(root string) *wslState {
	release, _ := os.ReadFile(filepath.Join(root, "proc/sys/kernel/osrelease"))
	kernel := strings.TrimSpace(string(release))
	if !strings.Contains(strings.ToLower(kernel), "microsoft") {
		return nil
	}
	return &wslState{
		Kernel: kernel, Driver: durable.Exists(filepath.Join(root, "dev/dxg")),
		Libraries: durable.Exists(filepath.Join(root, "usr/lib/wsl/lib")),
		Systemd:   durable.Exists(filepath.Join(root, "run/systemd/system")), // as sd_booted(3) does
	}
}
