//go:build e2e && linux

package bed

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/directx-nri/directx-nri/internal/readiness"
	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/shim/shimfile"
)

// The node's resources.
const (
	Display = "directx.microsoft.com/display"
	Compute = "directx.microsoft.com/compute"
)

// Name is the node's name; the kubelet appends it to the names of static pods.
const Name = "node"

// Directories and sockets whose place the kubelet fixes.
const (
	kubeletRoot      = "/var/lib/kubelet"
	DevicePluginDir  = kubeletRoot + "/device-plugins"
	podResourcesSock = kubeletRoot + "/pod-resources/kubelet.sock"
)

// Options describe a node.
type Options struct {
	// Replicas is how many times each GPU is offered; 0 leaves it to Config.
	Replicas int
	// Offered is what the kubelet is to offer, by resource, by default what follows
	// from the inventory, Replicas and the default rules.
	Offered map[string]int
	// AtLeast lets it offer more.
	AtLeast bool
	// NRIOff disables NRI in containerd; our plugin does not run.
	NRIOff bool
	// Inventory is the inventory file in force.
	Inventory *Inventory
	// Discover makes the product discover GPUs: there is no inventory. Offered says which.
	Discover bool
	// SameDevicePaths gives device nodes the same path in containers as on the host,
	// which is all that ctr supports.
	SameDevicePaths bool
	// NoKubelet leaves the kubelet and the product's daemons to the test.
	NoKubelet bool
	// Shim installs the runtime shim, for the runtime [DirectX].
	Shim bool
	// PluginFlags are further flags of the plugin.
	PluginFlags []string
	// Config is YAML that the product's configuration file has beside what the
	// node itself needs.
	Config string
	// WindowsKubelet runs a kubelet that allocates when it creates a container, as the
	// kubelet of Windows does; with Affinity it has the feature gate
	// WindowsCPUAndMemoryAffinity, with which it allocates at admission.
	WindowsKubelet, Affinity bool
	// Containerd2 runs containerd 2 in place of 1.7, the newest runc, and the newest kubelet
	// unless it is WindowsKubelet or has an API server, which is older.
	Containerd2 bool
	// APIPods hands pods to an API server of the node's own, in place of the kubelet. The
	// [Suite] has a network.
	APIPods bool
	// StateDirSize, in bytes, puts the product's state on an ext4 file system of
	// that size. 0 leaves it on the disk.
	StateDirSize int
}

// Node is a running node.
type Node struct {
	Options
	Containerd, Kubelet, Advertiser, Plugin *Process
	// API is nil without APIPods.
	API *APIServer

	// Dir is the node's directory, StateDir and RuntimeDir the product's.
	Dir, StateDir, RuntimeDir string
	// NRISocket is containerd's socket for NRI plugins.
	NRISocket string

	// CRI is containerd's service, and Root the root directory that it sees, "" for this
	// machine's.
	CRI  cri.RuntimeServiceClient
	Root string

	reports      string // where containers without their GPU write
	containerd   string // the directory of containerd's programs, and runc's of containerd 2
	kubelet      string // the kubelet's program
	cgroup       string // the control group of all containers
	inventory    string // the inventory file
	manifests    string // the kubelet's static pod directory
	readOnly     string // the address of the kubelet's read-only port
	parts        Parts
	podResources podresources.PodResourcesListerClient
	nextPod      int
	// registering is where the kubelet's log ended when the kubelet or the
	// advertiser was last started: they find each other after it.
	registering Mark
	applied     map[string]*applied
}

// Start starts a node and stops it when the test ends.
func Start(t *testing.T, opts Options) *Node {
	t.Helper()
	parts, err := FindParts()
	testutil.NoError(t, err)
	dir, err := os.MkdirTemp(RunDir(), "n")
	testutil.NoError(t, err)
	n := &Node{
		Options:    opts,
		reports:    filepath.Join(dir, "reports"),
		containerd: parts.dir,
		kubelet:    parts.Stock("kubelet"),
		Dir:        dir,
		StateDir:   filepath.Join(dir, "state"),
		RuntimeDir: filepath.Join(dir, "runtime"),
		NRISocket:  filepath.Join(dir, "nri.sock"),
		cgroup:     Cgroup(),
		applied:    make(map[string]*applied),
		inventory:  filepath.Join(dir, "inventory", "inventory.yaml"),
		manifests:  filepath.Join(dir, "manifests"),
		parts:      parts,
	}
	if opts.Containerd2 {
		n.containerd = filepath.Join(filepath.Dir(parts.dir), "containerd2")
	}
	switch {
	case opts.WindowsKubelet:
		n.kubelet = parts.Stock("../containerd2/kubelet-windows")
	case opts.Containerd2 && !opts.APIPods:
		n.kubelet = filepath.Join(n.containerd, "kubelet")
	}
	// An earlier node's.
	entries, err := filepath.Glob(kubeletRoot + "/*")
	testutil.NoError(t, err)
	for _, entry := range entries {
		testutil.NoError(t, os.RemoveAll(entry))
	}
	// The advertiser serves there without a kubelet too.
	for _, dir := range []string{DevicePluginDir, n.manifests, n.reports} {
		testutil.NoError(t, os.MkdirAll(dir, 0o755))
	}
	if opts.StateDirSize > 0 {
		testutil.NoError(t, os.Mkdir(n.StateDir, 0o700))
		MountDisk(t, n.StateDir, opts.StateDirSize)
	}
	n.WriteConfig(t, opts.Config)
	if n.Shim {
		WriteFile(t, n.ShimFile(), string(ReadFile(t, n.Product(shimfile.FileName()))), 0o755)
	}
	n.declareProcesses(t)
	if n.APIPods {
		n.API = StartAPIServer(t, parts, filepath.Join(dir, "api"), filepath.Dir(n.Kubelet.log))
	}
	t.Cleanup(func() { n.stop(t) })

	n.Containerd.Start(t)
	n.CRI = cri.NewRuntimeServiceClient(Dial(t, n.Address()))
	n.podResources = podresources.NewPodResourcesListerClient(Dial(t, podResourcesSock))
	n.WaitContainerd(t)
	n.ImportImage(t, Image, ImageConfig{})
	if !n.Discover {
		n.WriteInventory(t, opts.Inventory)
	}
	if opts.NoKubelet {
		if !n.Discover { // The advertiser discovers the GPUs.
			n.Dxctl(t, "config", "apply", "--config", n.ConfigFile())
		}
		return n
	}
	if !n.NRIOff {
		n.Plugin.Start(t)
		n.WaitPlugin(t)
	}
	n.Join(t)
	return n
}

// Join starts the kubelet and the advertiser, and waits until the kubelet offers the
// node's GPUs.
func (n *Node) Join(t testing.TB) {
	t.Helper()
	if n.APIPods {
		n.API.WaitAPI(t)
	}
	n.Kubelet.Start(t)
	n.WaitKubelet(t)
	n.Advertiser.Start(t)
	n.WaitOffered(t)
}

// stop ends the node's processes and checks that the product's end well, and did not panic
// before.
func (n *Node) stop(t *testing.T) {
	n.CheckMissingGPUs(t)
	if t.Failed() {
		n.DumpLogs(t)
		t.Logf("all logs are in %s", filepath.Dir(n.Kubelet.log))
	}
	for _, p := range []*Process{n.Advertiser, n.Plugin} {
		if p.Running() {
			p.Stop(t)
		}
		// The stack of a panic that was recovered has "panic(".
		for _, sign := range []string{"panic: ", "panic(", "fatal error: ", "DATA RACE"} {
			if strings.Contains(p.Log(0), sign) {
				t.Errorf("the log of %s has %q in it\n%s", p.Name, sign, p.Tail(60))
			}
		}
	}
	for _, p := range []*Process{n.Kubelet, n.Containerd} {
		if p.Running() {
			p.Terminate(t)
		}
	}
}

// Processes returns the node's processes, the runtime first.
func (n *Node) Processes() []*Process {
	return append([]*Process{n.Containerd, n.Kubelet}, n.Daemons()...)
}

// Daemons returns the product's processes on the node.
func (n *Node) Daemons() []*Process {
	if n.NRIOff {
		return []*Process{n.Advertiser}
	}
	return []*Process{n.Advertiser, n.Plugin}
}

// RestartDaemons ends all daemons, starts them again, and waits until they serve.
func (n *Node) RestartDaemons(t testing.TB) {
	t.Helper()
	for _, p := range n.Daemons() {
		p.Stop(t)
	}
	for _, p := range n.Daemons() {
		p.Start(t)
	}
	n.WaitReady(t)
}

// Part runs a part of a test. After it every running container must have what the
// kubelet assigned to it, and every program of the node runs again, with the
// inventory from before.
func (n *Node) Part(t *testing.T, name string, test func(t *testing.T)) {
	t.Run(name, func(t *testing.T) {
		inventory := n.Inventory
		// Before the cleanup that removes pods, which needs a working node.
		defer func() {
			if t.Failed() {
				n.DumpLogs(t)
			}
			n.Recover(t, inventory)
		}()
		test(t)
		n.CheckDevices(t)
	})
}

// Recover starts and thaws every process of the node and restores the inventory.
func (n *Node) Recover(t testing.TB, inventory *Inventory) {
	t.Helper()
	for _, p := range n.Processes() {
		if !p.Running() {
			p.Start(t)
		} else {
			p.Thaw(t)
		}
		if p == n.Containerd {
			n.WaitContainerd(t)
		}
	}
	if n.Inventory != inventory {
		n.WriteInventory(t, inventory)
	}
	n.WaitKubelet(t)
	n.WaitReady(t)
}

// Restart ends processes and starts them again. It waits until containerd and the kubelet
// serve, not until the product does: see [Node.WaitReady].
func (n *Node) Restart(t testing.TB, processes ...*Process) {
	t.Helper()
	for _, p := range processes {
		p.Terminate(t)
		p.Start(t)
	}
	n.WaitContainerd(t)
	if n.Kubelet.Running() {
		n.WaitKubelet(t)
	}
}

// DumpLogs logs the end of every process's log.
func (n *Node) DumpLogs(t testing.TB) {
	t.Helper()
	for _, p := range n.Processes() {
		t.Log(p.Tail(8)) // .ci/run prints 60 lines of a failed test.
	}
}

func (n *Node) declareProcesses(t testing.TB) {
	t.Helper()
	logs := filepath.Join(n.parts.Root, "out", "e2e", time.Now().Format("20060102-150405.000"))
	testutil.NoError(t, os.MkdirAll(logs, 0o755))
	containerdConfig := n.writeContainerdConfig(t)
	kubeletConfig := n.writeKubeletConfig(t)
	places := []string{"--state-dir", n.StateDir, "--runtime-dir", n.RuntimeDir}
	advertiserFlags := slices.Concat(places, []string{"--config", n.ConfigFile(), "--cri-socket", n.Address()})
	if n.Replicas > 0 {
		advertiserFlags = append(advertiserFlags, "--replicas", fmt.Sprint(n.Replicas))
	}
	if n.WindowsKubelet && !n.Affinity && !n.NRIOff { // Without NRI, the configuration says what adds the GPUs.
		advertiserFlags = append(advertiserFlags, "--injection", "shim") // It lets the kubelet allocate at creation.
	}
	pluginFlags := slices.Concat(places, []string{"--nri-socket", n.NRISocket, "--cri-socket", n.Address()}, n.PluginFlags)
	daemon := func(program string, args []string) *Process {
		return NewProcess(program, filepath.Join(logs, program+".log"), func() *exec.Cmd { return exec.Command(n.Product(program), args...) })
	}
	n.Containerd = NewProcess("containerd", filepath.Join(logs, "containerd.log"), func() *exec.Cmd {
		cmd := exec.Command(filepath.Join(n.containerd, "containerd"), "--config", containerdConfig)
		// containerd looks for shims beside itself and on PATH, and its
		// environment is theirs.
		cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(n.ShimFile())+":"+n.containerd+":"+os.Getenv("PATH"),
			"DIRECTX_NRI_STATE_DIR="+n.StateDir)
		return cmd
	})
	n.Kubelet = NewProcess("kubelet", filepath.Join(logs, "kubelet.log"), func() *exec.Cmd {
		args := []string{"--config", kubeletConfig, "--hostname-override", Name, "--root-dir", kubeletRoot, "--v", "3"}
		if n.WindowsKubelet { // It is on by default since 1.38.
			args = append(args, "--feature-gates", fmt.Sprintf("WindowsCPUAndMemoryAffinity=%t", n.Affinity))
		}
		if n.APIPods {
			args = append(args, "--kubeconfig", n.API.Kubeconfig, "--node-ip", NodeAddress)
		}
		return exec.Command(n.kubelet, args...)
	})
	n.Advertiser = daemon("directx-advertiser", advertiserFlags)
	for _, p := range []*Process{n.Kubelet, n.Advertiser} {
		p.onStart = func() { n.registering = n.Kubelet.Mark() }
	}
	n.Plugin = daemon("directx-nri", pluginFlags)
}

// offered is what the kubelet is to offer.
func (n *Node) offered() map[string]int {
	if n.Offered != nil {
		return n.Offered
	}
	return n.Inventory.Offered(n.Replicas)
}

// registered returns nil when the kubelet has the advertiser's devices of all
// resources since the last start of either. What it could allocate before is no
// proof: it may not have noticed yet that the advertiser ended.
func (n *Node) registered() error {
	log := n.Kubelet.Log(n.registering)
	for resource := range n.offered() {
		if !strings.Contains(log, fmt.Sprintf(`"State pushed for device plugin" resource=%q`, resource)) {
			return fmt.Errorf("the kubelet has no %s devices yet", resource)
		}
	}
	return nil
}

// WaitContainerd waits until containerd serves CRI.
func (n *Node) WaitContainerd(t testing.TB) {
	t.Helper()
	n.Containerd.wait(t, "containerd serves CRI", func() error {
		status, err := n.CRI.Status(context.Background(), &cri.StatusRequest{})
		if err != nil {
			return err
		}
		for _, condition := range status.GetStatus().GetConditions() {
			if condition.GetType() == cri.RuntimeReady && !condition.GetStatus() {
				return errors.New(condition.GetMessage())
			}
		}
		return nil
	})
}

// WaitKubelet waits until the kubelet answers and takes device plugins.
func (n *Node) WaitKubelet(t testing.TB) {
	t.Helper()
	n.Kubelet.wait(t, "the kubelet is up", func() error {
		if _, err := n.pods(); err != nil {
			return err
		}
		_, err := os.Stat(filepath.Join(DevicePluginDir, "kubelet.sock"))
		return err
	})
}

// WaitPlugin waits until the plugin reports that it is connected to containerd.
func (n *Node) WaitPlugin(t testing.TB) {
	t.Helper()
	n.Plugin.wait(t, "the plugin is connected to containerd", n.CheckPlugin)
}

// CheckPlugin returns an error if the plugin is not ready.
func (n *Node) CheckPlugin() error {
	return readiness.CheckPlugin(context.Background(), n.RuntimeDir)
}

// WaitReady waits until the plugin, if NRI is enabled, is connected and the kubelet
// offers every healthy replica of the inventory.
func (n *Node) WaitReady(t testing.TB) {
	t.Helper()
	if !n.NRIOff {
		n.WaitPlugin(t)
	}
	n.WaitOffered(t)
}

// WaitOffered waits until the kubelet offers every healthy replica of the
// inventory.
func (n *Node) WaitOffered(t testing.TB) {
	t.Helper()
	want := n.offered()
	n.Advertiser.wait(t, "the kubelet offers the node's GPUs", func() error {
		if err := n.registered(); err != nil {
			return err
		}
		got, err := n.Allocatable()
		if err != nil {
			return err
		}
		for resource, count := range want {
			if got[resource] < count || got[resource] > count && !n.AtLeast {
				return fmt.Errorf("allocatable %s is %d, want %d", resource, got[resource], count)
			}
		}
		return nil
	})
}

// Allocatable returns how many devices of each resource the kubelet can
// allocate.
func (n *Node) Allocatable() (map[string]int, error) {
	if n.WindowsKubelet {
		return n.loggedDevices(), nil
	}
	response, err := n.podResources.GetAllocatableResources(context.Background(), &podresources.AllocatableResourcesRequest{})
	if err != nil {
		return nil, err
	}
	counts := make(map[string]int)
	for _, devices := range response.GetDevices() {
		counts[devices.GetResourceName()] += len(devices.GetDeviceIds())
	}
	return counts, nil
}

// loggedDevices returns how many healthy devices of each resource the kubelet has by its log since its last start. The
// kubelet of Windows does not answer the question.
func (n *Node) loggedDevices() map[string]int {
	log := n.Kubelet.Log(0)
	if i := strings.LastIndex(log, `"Starting Device Plugin manager"`); i >= 0 {
		log = log[i:]
	}
	counts := make(map[string]int)
	for line := range strings.Lines(log) {
		if strings.Contains(line, `"Mark all resources Unhealthy for resource"`) {
			counts[field(line, "resourceName")] = 0
		} else if _, healthy, found := strings.Cut(line, "healthyCount="); found {
			counts[field(line, "resourceName")], _ = strconv.Atoi(strings.TrimSpace(healthy))
		}
	}
	return counts
}

// callTimeout bounds a call to containerd or the kubelet. NRI may hold a creation for
// 2 s for each plugin.
const callTimeout = 30 * time.Second

// Dial connects to a gRPC service on a Unix socket, whenever it is there. A call takes
// [callTimeout] at most.
func Dial(t testing.TB, socket string, more ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	bound := func(ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		return invoke(ctx, method, request, reply, conn, options...)
	}
	conn, err := grpc.NewClient("unix://"+socket, append(more,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(16<<20)),
		grpc.WithChainUnaryInterceptor(bound),
		// The service is restarted often: look for it again soon.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.2, MaxDelay: 250 * time.Millisecond},
			MinConnectTimeout: time.Second,
		}))...)
	if err != nil {
		t.Fatalf("connect to %s: %v", socket, err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// get reads a page of the kubelet's read-only port.
func (n *Node) get(path string) (*http.Response, error) {
	client := http.Client{Timeout: 5 * time.Second}
	response, err := client.Get("http://" + n.readOnly + path)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		response.Body.Close()
		return nil, fmt.Errorf("the kubelet answers %s to %s", response.Status, path)
	}
	return response, nil
}
