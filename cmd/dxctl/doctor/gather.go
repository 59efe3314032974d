package doctor

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

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"directx-nri/advertiser"
	"directx-nri/advertiser/resources"
	"directx-nri/discovery"
	"directx-nri/internal/allocation"
	"directx-nri/internal/capabilities"
	"directx-nri/internal/config"
	"directx-nri/internal/containerdconfig"
	"directx-nri/internal/durable"
	"directx-nri/internal/hostfiles"
	"directx-nri/internal/localgrpc"
	"directx-nri/internal/paths"
	"directx-nri/internal/readiness"
	"directx-nri/internal/shimfile"
	"directx-nri/internal/winpath"
	"directx-nri/nri/shim"
)

// Node says where things are on the node that is looked at.
type Node struct {
	OS      string
	Version string
	Role    Role
	// ServedBy is as in [Facts].
	ServedBy ServedBy

	// ShimConfig is our config.yaml. Inventory and StateDir are taken from it
	// where they are "".
	ShimConfig, Inventory, StateDir string
	RuntimeDir                      string
	// Shim is where our shim is installed unless containerd finds it elsewhere.
	Shim string

	// ConfigureDir is where 'dxctl runtime configure' keeps what it changed when it
	// is not told, which may be another folder than StateDir; "" for StateDir.
	ConfigureDir string

	ContainerdConfig string
	// ContainerdMajor is its major version where the caller knows better than the
	// running one, else 0.
	ContainerdMajor int
	ContainerdState string
	CRISocket       string
	NRISocket       string

	KubeletDir   string
	PodResources string

	// Devices lists the GPUs of an inventory file, or with "" those of the node.
	Devices func(ctx context.Context, inventory string) ([]discovery.Device, error)
	// Changed returns what 'dxctl runtime configure' knows of its changes.
	Changed func(config, state string) Leftovers
	// Installed returns what 'dxctl config install' knows of its files.
	Installed func(state string) Installed
	// Failed returns what 'dxctl runtime configure' knows of a restart that failed.
	Failed func(state string) FailedConfigure
	// Overrides tells which imported files take the place of what, and which cannot
	// be used.
	Overrides func(file containerdconfig.File, node containerdconfig.Node) (overrides, bad []string)

	// Timeout is how long each question may take.
	Timeout time.Duration
}

// pendingName is the file of our state folder by which 'dxctl runtime uninstall'
// tells that it was broken off.
const pendingName = "uninstall-pending"

// Gather looks at the node. All questions are asked at once, so it takes as long
// as the slowest, at most a few times [Node.Timeout].
func Gather(ctx context.Context, n Node) Facts {
	f := Facts{OS: n.OS, Version: n.Version, Role: n.Role, ServedBy: n.ServedBy}
	f.Config = within(ctx, n.Timeout, func() ConfigFile { return readConfig(n.ShimConfig) }, func(late error) ConfigFile {
		return ConfigFile{Path: n.ShimConfig, Exists: true, Value: config.Default(), Err: fmt.Errorf("read configuration %s: %w", n.ShimConfig, late)}
	})
	if n.Inventory == "" {
		n.Inventory = f.Config.Value.Inventory
	}
	if n.StateDir == "" && f.Config.Err == nil {
		n.StateDir = f.Config.Value.StateDir
	}
	rules := f.rules()
	var group sync.WaitGroup
	for _, look := range []func(){
		func() {
			f.GPUs = within(ctx, n.Timeout, func() GPUs { return n.gpus(ctx, f.Config) }, func(late error) GPUs {
				return GPUs{Inventory: n.Inventory, Err: fmt.Errorf("list the GPUs: %w", late)}
			})
		},
		func() { f.Windows = AskWindows(ctx, n.Timeout) },
		func() {
			f.Containerd = n.containerd(ctx)
			// Which files are shims of ours, containerd tells.
			f.Shims = n.shims(ctx, f.Containerd, f.Config.Value)
			f.Leftovers = n.leftovers(f.Shims)
		},
		func() { f.Installed = n.installed() },
		func() { f.Failed = n.failed() },
		func() { f.NRI = n.nri(ctx) },
		func() { f.Kubelet = n.kubelet(ctx, rules) },
		func() { f.Records = n.records(ctx) },
		func() { f.Folders = n.folders() },
		func() { f.HostFolders = hostFolders(f.Config.Value.ExtraMounts) },
		func() { f.Metrics = n.metrics(ctx, f.Config.Value) },
	} {
		group.Go(look)
	}
	group.Wait()
	return f
}

// within returns what look returns, or else what late makes of the reason why
// that took too long. A driver, Windows' container service or a disk that hangs
// cannot be called off: it is left behind until the process ends.
func within[T any](ctx context.Context, limit time.Duration, look func() T, late func(error) T) T {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	seen := make(chan T, 1)
	go func() { seen <- look() }()
	select {
	case answer := <-seen:
		return answer
	case <-ctx.Done():
		return late(ctx.Err())
	}
}

func readConfig(path string) ConfigFile {
	c := ConfigFile{Path: path, Value: config.Default()}
	_, err := os.Lstat(path)
	c.Exists = err == nil
	value, bad, err := config.ReadOrLastGood(path)
	if err != nil {
		c.Exists, c.Err = true, err
		return c
	}
	c.Value, c.Bad = value, bad
	return c
}

func (n Node) gpus(ctx context.Context, c ConfigFile) GPUs {
	ctx, cancel := context.WithTimeout(ctx, n.Timeout)
	defer cancel()
	g := GPUs{Inventory: n.Inventory}
	if c.Err != nil && n.Inventory == "" {
		g.Err = c.Err // It may name an inventory file.
		return g
	}
	devices, err := n.Devices(ctx, n.Inventory)
	if err != nil {
		g.Err = err
		return g
	}
	for _, d := range devices {
		g.List = append(g.List, missingOf(d, c.Value.RuntimeFiles))
	}
	return g
}

// missingOf looks for the files of a device, as what makes the spec edits does.
func missingOf(d discovery.Device, changes []config.RuntimeFiles) GPU {
	g := GPU{Device: d}
	root := hostfiles.Root("/")
	look := func(path string, find func(string) error) {
		switch err := find(path); {
		case err == nil:
		case errors.Is(err, fs.ErrNotExist):
			g.Missing = append(g.Missing, path)
		default:
			g.FilesErr = errors.Join(g.FilesErr, err)
		}
	}
	resolve := func(path string) error { _, err := root.Resolve(path); return err }
	for _, list := range [][]discovery.RuntimeFile{d.System32, d.SysWOW64} {
		for _, file := range list {
			if removed(d, file, changes) {
				continue
			}
			look(winpath.Join(d.DriverStorePath, file.Source), resolve)
		}
	}
	for _, library := range d.Libraries {
		look(library.Source, resolve)
	}
	for _, node := range d.DeviceNodes {
		look(node.Path, func(path string) error { _, err := root.DeviceNode(path); return err })
	}
	return g
}

// removed tells whether the configuration takes a file from d's containers.
func removed(d discovery.Device, file discovery.RuntimeFile, changes []config.RuntimeFiles) bool {
	return slices.ContainsFunc(changes, func(change config.RuntimeFiles) bool {
		return change.Vendor == uint16(d.VendorID) && slices.ContainsFunc(change.Remove, func(glob string) bool { return winpath.MatchPath(glob, file.Source) })
	})
}

// AskWindows returns what Windows can do, nil on other systems. Where it does not
// answer in time, that is the reason why HCS did not say, and nothing else is
// known.
func AskWindows(ctx context.Context, limit time.Duration) *capabilities.Capabilities {
	return within(ctx, limit, func() *capabilities.Capabilities {
		c, err := capabilities.Ask()
		if err != nil {
			return nil // This is another system.
		}
		return &c
	}, func(late error) *capabilities.Capabilities {
		return &capabilities.Capabilities{SchemasErr: fmt.Errorf("ask Windows what it can do: %w", late)}
	})
}

func (n Node) containerd(ctx context.Context) Containerd {
	c := Containerd{ConfigPath: n.ContainerdConfig, Socket: n.CRISocket}
	n.askContainerd(ctx, &c)
	node := containerdconfig.Node{OS: n.OS, Major: n.ContainerdMajor}
	if node.Major == 0 {
		node.Major = containerdconfig.Major(c.Version)
	}
	text, err := os.ReadFile(n.ContainerdConfig)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		c.FileErr = err
		return c
	}
	if c.File, err = containerdconfig.Read(text, node); err != nil {
		c.FileErr = locate(n.ContainerdConfig, err)
		return c
	}
	if n.Overrides != nil { // Whoever asks for containerd alone does not ask for it.
		c.Overrides, c.BadImports = n.Overrides(c.File, node)
	}
	return c
}

func locate(file string, err error) error {
	var syntax *containerdconfig.SyntaxError
	if errors.As(err, &syntax) {
		return fmt.Errorf("%s:%w", file, err)
	}
	return fmt.Errorf("%s: %w", file, err)
}

func (n Node) askContainerd(ctx context.Context, c *Containerd) {
	ctx, cancel := context.WithTimeout(ctx, n.Timeout)
	defer cancel()
	if c.Err = reach(ctx, n.CRISocket); c.Err != nil {
		return
	}
	connection, err := containerdconfig.Dial(n.CRISocket)
	if err != nil {
		c.Err = err
		return
	}
	defer connection.Close()
	if c.Version, err = containerdconfig.RunningVersion(ctx, connection); err == nil {
		c.Loaded, err = containerdconfig.LoadedHandlers(ctx, connection)
	}
	c.WithoutCRI = status.Code(err) == codes.Unimplemented
	c.Err = explain(err)
}

// explain returns the error of a call as one that tells a timeout as such, and
// on Windows a closed pipe.
func explain(err error) error {
	switch {
	case err == nil:
	case status.Code(err) == codes.DeadlineExceeded:
		return fmt.Errorf("%w: %w", err, context.DeadlineExceeded)
	case strings.Contains(err.Error(), "Access is denied"):
		return fmt.Errorf("%w: %w", err, fs.ErrPermission)
	}
	return err
}

// reach tells why nobody answers at the address of a Unix socket, in errors that
// a gRPC call would hide. Of pipes the call itself tells.
func reach(ctx context.Context, address string) error {
	path := strings.TrimPrefix(strings.TrimPrefix(address, "unix:"), "//")
	if strings.HasPrefix(path, `\\.\`) || strings.HasPrefix(path, "npipe:") {
		return nil
	}
	connection, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("%w: %w", err, context.DeadlineExceeded)
		}
		return err
	}
	connection.Close()
	return nil
}

// shims returns the files by which containerd runs our shim.
func (n Node) shims(ctx context.Context, c Containerd, value config.Config) []Shim {
	daemon := containerdProcess(ctx, n.CRISocket)
	var list []Shim
	at := func(path string) *Shim {
		i := slices.IndexFunc(list, func(s Shim) bool { return s.Path == path })
		if i < 0 {
			list, i = append(list, Shim{Path: path}), len(list)
		}
		return &list[i]
	}
	for _, h := range c.File.Handlers {
		if h.Ours() {
			at(h.RuntimePath).Handlers = append(at(h.RuntimePath).Handlers, h.Name)
		}
	}
	for _, h := range c.Loaded {
		if h.Ours() && !slices.Contains(at(h.RuntimePath).Handlers, h.Name) {
			at(h.RuntimePath).Handlers = append(at(h.RuntimePath).Handlers, h.Name)
		}
	}
	at(n.byName(daemon)).ByName = true
	var group sync.WaitGroup
	for i := range list {
		group.Go(func() { n.try(ctx, &list[i], value, daemon) })
	}
	group.Wait()
	return list
}

// byName returns the file that containerd finds for the runtime
// io.containerd.directx.v1: on its PATH, and then beside it.
// https://github.com/containerd/containerd/blob/v1.7.35/runtime/v2/manager.go
func (n Node) byName(daemon process) string {
	name := shimfile.FileName(n.OS)
	folders := filepath.SplitList(daemon.path)
	if daemon.folder != "" {
		folders = append(folders, daemon.folder)
	}
	if path, ok := lookIn(folders, name); ok {
		return path
	}
	return n.Shim
}

// process is what is known of containerd's, nothing where it cannot be told.
type process struct {
	// folder is that of its program, path its PATH.
	folder, path string
}

func lookIn(folders []string, name string) (string, bool) {
	for _, folder := range folders {
		path := filepath.Join(folder, name)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			return path, true
		}
	}
	return "", false
}

// try runs a shim with --version, and looks for the real one.
func (n Node) try(ctx context.Context, s *Shim, value config.Config, daemon process) {
	s.Version, s.Err = n.ask(ctx, s.Path)
	name := value.Shim.Runtime
	if name == "" {
		name = shim.UsualRuntime
	}
	s.Real, s.RealErr = shim.FindRuntime(s.Path, name)
	if s.RealErr == nil || filepath.IsAbs(name) || daemon.path == "" {
		return
	}
	// Our PATH is not containerd's.
	if path, ok := lookIn(filepath.SplitList(daemon.path), name); ok {
		s.Real, s.RealErr = path, nil
	}
}

// errNoVersion tells a program that is called like our shim and is another.
var errNoVersion = errors.New("it does not tell its version as our shim does")

func (n Node) ask(ctx context.Context, path string) (version string, err error) {
	if _, err := os.Stat(path); err != nil {
		return "", err
	}
	// We may run as the system, and what others can write may be anything.
	if err := durable.CheckFile(path); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, n.Timeout)
	defer cancel()
	command := exec.CommandContext(ctx, path, "--version")
	command.WaitDelay = time.Second
	var stdout bytes.Buffer
	command.Stdout = &stdout
	if err := command.Run(); err != nil {
		if ctx.Err() != nil {
			return "", fmt.Errorf("run %s --version: %w", path, context.DeadlineExceeded)
		}
		if errors.Is(err, fs.ErrPermission) && os.Geteuid() == 0 {
			// Nothing is kept from root: this program is one for nobody.
			return "", fmt.Errorf("run %s --version: %s: it is not executable, or its disk is mounted noexec", path, err.Error())
		}
		return "", fmt.Errorf("run %s --version: %w", path, err)
	}
	fields := strings.Fields(stdout.String())
	if len(fields) != 2 || fields[0] != shimfile.Base {
		return "", fmt.Errorf("%s: %w", path, errNoVersion)
	}
	return fields[1], nil
}

func (n Node) nri(ctx context.Context) NRI {
	r := NRI{PluginSocket: filepath.Join(n.RuntimeDir, readiness.SocketName), Socket: n.NRISocket}
	if n.NRISocket == "" {
		r.PluginErr = readiness.ErrNotRunning
		return r
	}
	_, err := os.Lstat(r.PluginSocket)
	r.Started = err == nil
	question, cancel := context.WithTimeout(ctx, n.Timeout)
	defer cancel()
	if r.PluginErr = readiness.Check(question, r.PluginSocket); r.PluginErr != nil {
		// containerd logs each connection that comes to nothing, so it is not
		// troubled without need.
		question, cancel := context.WithTimeout(ctx, n.Timeout)
		defer cancel()
		r.SocketErr = reach(question, n.NRISocket)
	}
	return r
}

func (n Node) kubelet(ctx context.Context, rules []config.Resource) Kubelet {
	k := Kubelet{Folder: n.KubeletDir, PodResources: n.PodResources}
	if _, err := os.Stat(n.KubeletDir); err != nil {
		k.FolderErr = err
		return k
	}
	ctx, cancel := context.WithTimeout(ctx, n.Timeout)
	defer cancel()
	var group sync.WaitGroup
	group.Go(func() { k.SocketErr = reach(ctx, filepath.Join(n.KubeletDir, "kubelet.sock")) })
	group.Go(func() { k.Allocatable, k.PodResourcesErr = allocatable(ctx, n.PodResources) })
	answers := map[string]*error{}
	for _, resource := range resources.Names(resources.FromConfig(rules)) {
		answer := new(error)
		answers[resource] = answer
		group.Go(func() { *answer = callPlugin(ctx, filepath.Join(n.KubeletDir, advertiser.SocketName(resource))) })
	}
	group.Wait()
	k.Advertiser = map[string]error{}
	for resource, answer := range answers {
		k.Advertiser[resource] = *answer
	}
	return k
}

// callPlugin asks a device plugin something that changes nothing.
func callPlugin(ctx context.Context, socket string) error {
	return call(ctx, socket, func(connection *grpc.ClientConn) error {
		_, err := v1beta1.NewDevicePluginClient(connection).GetDevicePluginOptions(ctx, &v1beta1.Empty{})
		return err
	})
}

// allocatable returns the device IDs that the kubelet may hand out.
func allocatable(ctx context.Context, socket string) (ids map[string][]string, err error) {
	ids = map[string][]string{}
	err = call(ctx, socket, func(connection *grpc.ClientConn) error {
		answer, err := podresources.NewPodResourcesListerClient(connection).GetAllocatableResources(ctx, &podresources.AllocatableResourcesRequest{})
		if status.Code(err) == codes.Unimplemented {
			return fmt.Errorf("%w: %w", err, errors.ErrUnsupported)
		}
		for _, devices := range answer.GetDevices() {
			ids[devices.GetResourceName()] = append(ids[devices.GetResourceName()], devices.GetDeviceIds()...)
		}
		return err
	})
	return ids, err
}

func call(ctx context.Context, socket string, do func(*grpc.ClientConn) error) error {
	if err := reach(ctx, socket); err != nil {
		return err
	}
	connection, err := localgrpc.Dial(socket)
	if err != nil {
		return err
	}
	defer connection.Close()
	return explain(do(connection))
}

func (n Node) records(ctx context.Context) Records {
	if n.StateDir == "" {
		return Records{} // The file that names it cannot be read.
	}
	r := Records{Folder: paths.Allocations(n.StateDir)}
	ctx, cancel := context.WithTimeout(ctx, n.Timeout)
	defer cancel()
	_, problems, err := allocation.OpenStore(r.Folder).List(ctx)
	r.Err = err
	for _, p := range problems {
		switch {
		case errors.Is(p.Err, allocation.ErrOrphan):
			r.Orphans = append(r.Orphans, p.Path)
		case errors.Is(p.Err, allocation.ErrForeign):
			r.Strange = append(r.Strange, p.Path)
		default:
			r.Damaged = append(r.Damaged, FileError{p.Path, p.Err})
		}
	}
	return r
}

// folders looks who can write our folders. That of the records is looked at with
// them, that of config.yaml with it.
func (n Node) folders() []Folder {
	var list []Folder
	for _, folder := range []Folder{
		{Path: n.StateDir, What: "the folder of the allocation records"},
		{Path: n.RuntimeDir, What: "the socket by which the NRI plugin is known to be there"},
	} {
		if _, err := os.Lstat(folder.Path); errors.Is(err, fs.ErrNotExist) || folder.Path == "" {
			continue
		}
		folder.Err = durable.CheckPrivate(folder.Path)
		list = append(list, folder)
	}
	return list
}

// hostFolders looks who can write to the folders that pods may have files of.
func hostFolders(m config.ExtraMounts) []Folder {
	if m.Sources != config.MountHostFolders {
		return nil
	}
	var list []Folder
	for _, path := range m.HostFolders {
		list = append(list, Folder{Path: path, Err: durable.CheckFile(path)})
	}
	return list
}

func isNotPrivate(err error) bool { return errors.Is(err, durable.ErrNotPrivate) }

func (n Node) leftovers(shims []Shim) Leftovers {
	var l Leftovers
	if n.StateDir != "" {
		l = n.changed()
	}
	for _, s := range shims {
		if !errors.Is(s.Err, fs.ErrNotExist) {
			continue
		}
		bundles, err := shimfile.FindBundles(n.ContainerdState, s.Path)
		if err != nil || len(bundles) == 0 {
			continue // Without permission the other checks say so.
		}
		l.AbandonedBy = s.Path
		for _, b := range bundles {
			l.Abandoned = append(l.Abandoned, b.String())
		}
	}
	return l
}

// changed looks in each folder in which 'dxctl runtime' may have kept what it did.
func (n Node) changed() Leftovers {
	var l Leftovers
	pending := ""
	for _, state := range slices.Compact([]string{n.StateDir, cmp.Or(n.ConfigureDir, n.StateDir)}) {
		if path := filepath.Join(state, pendingName); exists(path) {
			pending = path
		}
		if l.Journal == "" { // With a journal a copy is no leftover.
			l = n.Changed(n.ContainerdConfig, state)
		}
	}
	l.Pending = pending
	return l
}

// installed looks in each folder in which that may be kept.
func (n Node) installed() Installed {
	var i Installed
	for _, state := range slices.Compact([]string{cmp.Or(n.ConfigureDir, n.StateDir), n.StateDir}) {
		if i.Record == "" && state != "" && n.Installed != nil {
			i = n.Installed(state)
		}
	}
	return i
}

// failed looks in each folder in which that may be kept.
func (n Node) failed() FailedConfigure {
	var c FailedConfigure
	for _, state := range slices.Compact([]string{cmp.Or(n.ConfigureDir, n.StateDir), n.StateDir}) {
		if c.Record == "" && state != "" && n.Failed != nil {
			c = n.Failed(state)
		}
	}
	return c
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// GatherContainerd looks at containerd and our shim alone.
func GatherContainerd(ctx context.Context, n Node) (Containerd, []Shim) {
	c := n.containerd(ctx)
	return c, n.shims(ctx, c, config.Default())
}
