package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"directx-nri/advertiser"
	"directx-nri/cmd/dxctl/doctor"
	"directx-nri/discovery"
	"directx-nri/internal/allocation"
	"directx-nri/internal/capabilities"
	"directx-nri/internal/cli"
	"directx-nri/internal/config"
	"directx-nri/internal/containerdconfig"
	"directx-nri/internal/durable"
	"directx-nri/internal/localgrpc"
	"directx-nri/internal/paths"
	"directx-nri/internal/policy"
	"directx-nri/internal/readiness"
	"directx-nri/internal/shimfile"
	"directx-nri/internal/winpath"
	"directx-nri/nri/shim"
)

// nodeFacts gathers the facts of a node for doctor, capabilities and runtime status.
type nodeFacts struct {
	target
	shim       string
	runtimeDir string
	timeout    time.Duration
	// These are for doctor only.
	nriSocket, kubeletDir, podResources, containerdState string
}

// addFlags adds the flags for containerd and for what uses it.
func (n *nodeFacts) addFlags(flags *pflag.FlagSet) {
	places := paths.Default()
	n.target.addFlags(flags)
	flags.StringVar(&n.stateDir, "state-dir", places.State, "state `DIRECTORY`")
	flags.StringVar(&n.shim, "shim", filepath.Join(places.ShimDir, shimfile.FileName(n.os)), "runtime shim `FILE`, if containerd finds none")
	flags.StringVar(&n.runtimeDir, "runtime-dir", places.Runtime, "runtime `DIRECTORY` of directx-nri")
	n.addTimeout(flags)
}

func (n *nodeFacts) addTimeout(flags *pflag.FlagSet) {
	flags.DurationVar(&n.timeout, "timeout", 5*time.Second, "limit for each query")
}

func (n *nodeFacts) check() error {
	if n.timeout <= 0 {
		return cli.Usage("--timeout %s is not positive", n.timeout)
	}
	return n.target.check()
}

// gather returns the facts. All queries run at once.
func (n *nodeFacts) gather(ctx context.Context) doctor.Facts {
	f := n.gatherRuntime(ctx)
	var group sync.WaitGroup
	group.Go(func() {
		f.GPUs = within(ctx, n.timeout, func(ctx context.Context) doctor.GPUs { return n.gpus(ctx, f.Config) }, func(late error) doctor.GPUs {
			return doctor.GPUs{Inventory: f.Config.Policy.Source.Inventory, Err: fmt.Errorf("list the GPUs: %w", late)}
		})
	})
	group.Go(func() { f.Leftovers = n.leftovers(f.Shims) })
	group.Go(func() { f.Kubelet = n.kubelet(ctx, f.Config.Policy) })
	group.Go(func() { f.Records = n.records(ctx) })
	f.Access = n.access(f.Config)
	group.Wait()
	return f
}

// gatherRuntime returns the facts of the configuration, Windows, containerd, the
// shim and the NRI plugin.
func (n *nodeFacts) gatherRuntime(ctx context.Context) doctor.Facts {
	f := doctor.Facts{OS: n.os, Version: knownVersion(cli.Version(version))}
	var group sync.WaitGroup
	group.Go(func() { f.Windows = askWindows(ctx, n.timeout) })
	group.Go(func() { f.NRI = n.nri(ctx) })
	group.Go(func() { f.Containerd = n.containerd(ctx) })
	f.Config = within(ctx, n.timeout, func(context.Context) doctor.Config { return n.policyFacts() }, func(late error) doctor.Config {
		return doctor.Config{Path: paths.Default().Config, Policy: policy.Default(), Err: fmt.Errorf("read node policy: %w", late)}
	})
	group.Wait()
	f.Shims = n.shims(ctx, f.Containerd, f.Config.Policy)
	return f
}

// within returns the result of query, or of late if query takes too long. A driver,
// a Windows service or a disk that hangs cannot be interrupted: query continues in
// the background.
func within[T any](ctx context.Context, limit time.Duration, query func(context.Context) T, late func(error) T) T {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	result := make(chan T, 1)
	go func() { result <- query(ctx) }()
	select {
	case answer := <-result:
		return answer
	case <-ctx.Done():
		return late(ctx.Err())
	}
}

// knownVersion returns "" for the version of a program that was built without one.
func knownVersion(text string) string {
	if text == "unknown" || text == "(devel)" {
		return ""
	}
	return text
}

func (n *nodeFacts) policyFacts() doctor.Config {
	c := doctor.Config{Path: paths.Default().Config, Policy: policy.Default(), Applied: exists(policy.Path(n.stateDir))}
	if p, err := policy.Read(n.stateDir); err != nil {
		c.Err = err
		return c
	} else if c.Policy = p; p.Source.Config != "" {
		c.Path = p.Source.Config
	}
	if c.Stale = config.Stale(c.Policy, c.Path); len(c.Stale) > 0 {
		_, _, c.Invalid = config.Compiler{File: c.Path, StateDir: n.stateDir, NodeOS: n.os}.Compile()
	}
	return c
}

func (n *nodeFacts) gpus(ctx context.Context, c doctor.Config) doctor.GPUs {
	g := doctor.GPUs{Inventory: c.Policy.Source.Inventory, Err: c.Err}
	if g.Err != nil {
		return g
	}
	source, err := openPolicy(c.Policy, n.stateDir)
	if err != nil {
		g.Err = err
		return g
	}
	devices, err := source.Devices(ctx)
	g.Err = err
	for i, r := range reportDevices(devices, c.Policy.Resources) {
		g.List = append(g.List, doctor.GPU{Device: devices[i], Resource: r.Resource, Missing: missingFiles(devices[i], r, c.Policy.RuntimeFiles)})
	}
	return g
}

// missingFiles returns the files of a device's containers that do not exist, but for
// those that rules remove.
func missingFiles(d discovery.Device, r deviceReport, rules []policy.RuntimeFiles) []string {
	detail := deviceDetail{deviceReport: r}
	detail.checkFiles(nodeFiles{})
	var missing []string
	for _, file := range slices.Concat(r.System32, r.SysWOW64, r.DeviceNodes, r.Libraries) {
		removed := slices.ContainsFunc(rules, func(rule policy.RuntimeFiles) bool {
			return rule.Vendor == uint16(d.VendorID) && slices.ContainsFunc(rule.Remove, func(glob string) bool { return winpath.MatchPath(glob, file.Source) })
		})
		if file.Missing && !removed {
			missing = append(missing, file.Source)
		}
	}
	return missing
}

// askWindows returns what Windows supports, nil on other systems.
func askWindows(ctx context.Context, limit time.Duration) *capabilities.Capabilities {
	return within(ctx, limit, func(context.Context) *capabilities.Capabilities {
		c, err := capabilities.Ask()
		if err != nil {
			return nil
		}
		return &c
	}, func(late error) *capabilities.Capabilities {
		return &capabilities.Capabilities{SchemasErr: fmt.Errorf("query Windows: %w", late)}
	})
}

func (n *nodeFacts) containerd(ctx context.Context) doctor.Containerd {
	c := doctor.Containerd{ConfigPath: n.config, Socket: n.criSocket}
	n.queryContainerd(ctx, &c)
	node := containerdconfig.Node{OS: n.os, Major: cmp.Or(n.major, containerdconfig.Major(c.Version))}
	text, _, err := readFile(n.config)
	if err != nil {
		c.FileErr = err
		return c
	}
	if c.File, err = containerdconfig.Read(text, node); err != nil {
		c.FileErr = locate(n.config, err)
		return c
	}
	for _, err := range n.imports(c.File, node) {
		if errors.Is(err, errOverridden) {
			c.Overrides = append(c.Overrides, err.Error())
		} else {
			c.BadImports = append(c.BadImports, err.Error())
		}
	}
	return c
}

func (n *nodeFacts) queryContainerd(ctx context.Context, c *doctor.Containerd) {
	ctx, cancel := context.WithTimeout(ctx, n.timeout)
	defer cancel()
	c.Err = call(ctx, n.criSocket, func(connection *grpc.ClientConn) (err error) {
		loaded, err := containerdconfig.Load(ctx, connection)
		c.Version, c.Loaded = loaded.Version, loaded.Handlers
		c.WithoutCRI = status.Code(err) == codes.Unimplemented
		return err
	})
}

// call calls do with a connection to a socket. Its errors match those of [os] and
// [context].
func call(ctx context.Context, socket string, do func(*grpc.ClientConn) error) error {
	if err := reach(ctx, socket); err != nil {
		return err
	}
	connection, err := localgrpc.Dial(socket)
	if err != nil {
		return err
	}
	defer connection.Close()
	switch err := do(connection); {
	case status.Code(err) == codes.DeadlineExceeded:
		return fmt.Errorf("%w: %w", err, context.DeadlineExceeded)
	case err != nil && strings.Contains(err.Error(), "Access is denied"):
		return fmt.Errorf("%w: %w", err, fs.ErrPermission)
	default:
		return err
	}
}

// reach returns why no process listens on a Unix socket, which gRPC would hide. For
// a named pipe it returns nil.
func reach(ctx context.Context, address string) error {
	path := strings.TrimPrefix(strings.TrimPrefix(address, "unix:"), "//")
	if strings.HasPrefix(path, `\\.\`) || strings.HasPrefix(path, "npipe:") {
		return nil
	}
	connection, err := new(net.Dialer).DialContext(ctx, "unix", path)
	switch {
	case err == nil:
		return connection.Close()
	case ctx.Err() != nil:
		return fmt.Errorf("%w: %w", err, context.DeadlineExceeded)
	}
	return err
}

// shims returns the files that containerd runs as our shim: those of its handlers,
// and the one that it finds by name for ctr and nerdctl.
func (n *nodeFacts) shims(ctx context.Context, c doctor.Containerd, p policy.Policy) []doctor.Shim {
	handlers := map[string][]string{}
	var order []string
	for _, h := range slices.Concat(c.File.Handlers, c.Loaded) {
		if h.Ours() && !slices.Contains(handlers[h.RuntimePath], h.Name) {
			handlers[h.RuntimePath] = append(handlers[h.RuntimePath], h.Name)
			order = append(order, h.RuntimePath)
		}
	}
	search := containerdSearchPath(ctx, n.criSocket)
	byName := n.shim
	if path, ok := lookIn(search, shimfile.FileName(n.os)); ok {
		byName = path
	}
	var list []doctor.Shim
	seen := map[string]bool{}
	for _, path := range append(order, byName) {
		if !seen[path] {
			seen[path] = true
			list = append(list, doctor.Shim{Path: path, Handlers: handlers[path]})
		}
	}
	var group sync.WaitGroup
	for i := range list {
		group.Go(func() {
			s := &list[i]
			s.Version, s.Err = n.shimVersion(ctx, s.Path)
			name := cmp.Or(p.Shim.Runtime, shim.UsualRuntime)
			_, s.RealErr = shim.FindRuntime(s.Path, name)
			if _, ok := lookIn(search, name); ok && !filepath.IsAbs(name) { // containerd's PATH is not ours.
				s.RealErr = nil
			}
		})
	}
	group.Wait()
	return list
}

func lookIn(dirs []string, name string) (string, bool) {
	for _, dir := range dirs {
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			return path, true
		}
	}
	return "", false
}

// shimVersion runs a shim, unless others could have written it: we may run with
// all privileges.
func (n *nodeFacts) shimVersion(ctx context.Context, path string) (string, error) {
	if _, err := os.Stat(path); err != nil {
		return "", err
	}
	if err := durable.CheckFile(path); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, n.timeout)
	defer cancel()
	command := exec.CommandContext(ctx, path, "--version")
	command.WaitDelay = time.Second
	var stdout bytes.Buffer
	command.Stdout = &stdout
	err := command.Run()
	fields := strings.Fields(stdout.String())
	switch {
	case err != nil && ctx.Err() != nil:
		return "", fmt.Errorf("run %s --version: %w", path, context.DeadlineExceeded)
	case errors.Is(err, fs.ErrPermission) && os.Geteuid() == 0: // Not a matter of the user.
		return "", fmt.Errorf("run %s --version: %s: it is not executable, or its disk is mounted noexec", path, err.Error())
	case err != nil:
		return "", fmt.Errorf("run %s --version: %w", path, err)
	case len(fields) != 2 || fields[0] != shimfile.Base:
		return "", fmt.Errorf("%s is another program: it does not print its version as our shim does", path)
	}
	return fields[1], nil
}

func (n *nodeFacts) nri(ctx context.Context) doctor.NRI {
	r := doctor.NRI{PluginSocket: filepath.Join(n.runtimeDir, readiness.SocketName), Socket: n.nriSocket, PluginErr: readiness.ErrNotRunning}
	if n.os == "windows" {
		return r
	}
	r.Started = exists(r.PluginSocket)
	ctx, cancel := context.WithTimeout(ctx, n.timeout)
	defer cancel()
	// containerd logs each connection without a registration.
	if r.PluginErr = readiness.Check(ctx, r.PluginSocket); r.PluginErr != nil && n.nriSocket != "" {
		r.SocketErr = reach(ctx, n.nriSocket)
	}
	return r
}

func (n *nodeFacts) kubelet(ctx context.Context, p policy.Policy) doctor.Kubelet {
	k := doctor.Kubelet{Dir: n.kubeletDir, PodResources: n.podResources, Advertiser: map[string]error{}, Allocatable: map[string][]string{}}
	if _, k.DirErr = os.Stat(n.kubeletDir); k.DirErr != nil {
		return k
	}
	ctx, cancel := context.WithTimeout(ctx, n.timeout)
	defer cancel()
	var group sync.WaitGroup
	var mu sync.Mutex
	group.Go(func() { k.SocketErr = reach(ctx, filepath.Join(n.kubeletDir, "kubelet.sock")) })
	group.Go(func() {
		k.PodResourcesErr = call(ctx, n.podResources, func(connection *grpc.ClientConn) error {
			answer, err := podresources.NewPodResourcesListerClient(connection).GetAllocatableResources(ctx, &podresources.AllocatableResourcesRequest{})
			if status.Code(err) == codes.Unimplemented {
				return fmt.Errorf("%w: %w", err, errors.ErrUnsupported)
			}
			for _, devices := range answer.GetDevices() {
				k.Allocatable[devices.GetResourceName()] = append(k.Allocatable[devices.GetResourceName()], devices.GetDeviceIds()...)
			}
			return err
		})
	})
	for _, resource := range p.Resources {
		group.Go(func() {
			err := call(ctx, filepath.Join(n.kubeletDir, advertiser.SocketName(resource.Name)), func(connection *grpc.ClientConn) error {
				_, err := v1beta1.NewDevicePluginClient(connection).GetDevicePluginOptions(ctx, &v1beta1.Empty{})
				return err
			})
			mu.Lock()
			defer mu.Unlock()
			k.Advertiser[resource.Name] = err
		})
	}
	group.Wait()
	return k
}

func (n *nodeFacts) records(ctx context.Context) doctor.Records {
	r := doctor.Records{Dir: paths.Allocations(n.stateDir)}
	ctx, cancel := context.WithTimeout(ctx, n.timeout)
	defer cancel()
	_, problems, err := allocation.OpenStore(r.Dir).List(ctx)
	r.Err = err
	for _, p := range problems {
		r.Damaged = append(r.Damaged, doctor.FileError{Path: p.Path, Err: p.Err})
	}
	return r
}

// access checks who can write files that decide what containers get.
func (n *nodeFacts) access(c doctor.Config) []doctor.Access {
	var list []doctor.Access
	add := func(path string, dir, optional bool, why string, check func(string) error) {
		if path != "" && (!optional || exists(path)) {
			list = append(list, doctor.Access{Path: path, Dir: dir, Err: check(path), Why: why})
		}
	}
	add(n.stateDir, true, true, "others can change the node policy and the allocation records", durable.CheckPrivate)
	add(n.runtimeDir, true, true, "others can pretend to be the NRI plugin", durable.CheckPrivate)
	add(c.Path, false, true, "the file is refused, because it names a program that runs with all privileges", durable.CheckFile)
	add(c.Policy.Source.Inventory, false, true, "the file is refused, because it decides what containers get", durable.CheckFile)
	if c.Policy.ExtraMounts.Sources == policy.MountHostDirectories {
		for _, dir := range c.Policy.ExtraMounts.HostDirectories {
			add(dir, true, false, "users who can write there decide what pods with a GPU get", durable.CheckFile)
		}
	}
	return list
}

func (n *nodeFacts) leftovers(shims []doctor.Shim) doctor.Leftovers {
	var l doctor.Leftovers
	journal := filepath.Join(n.stateDir, journalName)
	managed, err := openManaged(n.config, n.stateDir)
	switch {
	case err != nil && (exists(journal) || errors.Is(err, fs.ErrPermission)):
		l.Damaged = append(l.Damaged, doctor.FileError{Path: journal, Err: err})
	case err != nil: // A finding about containerd's file.
	case exists(journal):
		l.Journal, l.Applied = journal, managed.applied()
	case exists(managed.backupPath()):
		l.Backup = managed.backupPath()
	}
	if path := filepath.Join(n.stateDir, pendingName); exists(path) {
		l.Pending = path
	}
	failed := attempt{state: n.stateDir}
	switch last, exists, err := failed.last(); {
	case err != nil:
		l.Damaged = append(l.Damaged, doctor.FileError{Path: failed.path(), Err: err})
	case exists:
		l.Failed, l.FailedAt, l.FailedCause = failed.path(), last.At, last.Error
	}
	for _, s := range shims {
		if !errors.Is(s.Err, fs.ErrNotExist) {
			continue
		}
		bundles, err := shimfile.FindBundles(n.containerdState, s.Path)
		if err != nil {
			continue // Other checks report a lack of permission.
		}
		for _, b := range bundles {
			l.AbandonedBy, l.Abandoned = s.Path, append(l.Abandoned, b.String())
		}
	}
	return l
}
