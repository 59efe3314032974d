//go:build e2e && linux

package bed

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"directx-nri/internal/readiness"
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
	kubeletRoot       = "/var/lib/kubelet"
	DevicePluginDir   = kubeletRoot + "/device-plugins"
	podResourcesSock  = kubeletRoot + "/pod-resources/kubelet.sock"
	startTimeout      = 60 * time.Second
	containerdAddress = "cd.sock"
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
	// Live has the product discover GPUs: there is no inventory. Offered says which.
	Live bool
	// SameDevicePaths gives device nodes the same path in containers as on the host,
	// which is all that ctr supports.
	SameDevicePaths bool
	// NoKubelet leaves the kubelet and the product's daemons to the test.
	NoKubelet bool
	// LogLevel is the daemons' log level, by default debug.
	LogLevel string
	// Shim installs the runtime shim, for the runtime [DirectX] and in front of
	// the runtime of pods.
	Shim bool
	// HandlerApart leaves the runtime of pods without the shim.
	HandlerApart bool
	// AdvertiserFlags and PluginFlags are further flags of the daemons.
	AdvertiserFlags, PluginFlags []string
	// Config is YAML that the product's configuration file has beside what the
	// node itself needs.
	Config string
	// Containerd2 runs containerd 2 in place of 1.7.
	Containerd2 bool
	// Products is the directory of other programs of the product than this tree's.
	Products string
	// StateDirSize, in bytes, puts the product's state on a file system of
	// that size. 0 leaves it on the disk.
	StateDirSize int
}

// Node is a running node.
type Node struct {
	Options
	Containerd, Kubelet, Advertiser, Plugin *Process

	// Dir is the node's directory, StateDir and RuntimeDir the product's.
	Dir, StateDir, RuntimeDir string
	// NRISocket is containerd's socket for NRI plugins.
	NRISocket string

	// CRI is containerd's service.
	CRI cri.RuntimeServiceClient

	witness      string // where containers without their GPU write
	containerd   string // the directory of containerd's programs
	layer        string // the snapshot of the image's one layer
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

// Start starts a node and stops it when the test ends. It skips the test when
// the machine cannot run one.
func Start(t *testing.T, opts Options) *Node {
	t.Helper()
	if reason := os.Getenv(skipVar); reason != "" {
		t.Skip(reason)
	}
	parts, err := FindParts()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp(os.Getenv(dirVar), "n")
	if err != nil {
		t.Fatalf("make the node's directory: %v", err)
	}
	n := &Node{
		Options:    opts,
		witness:    filepath.Join(dir, "witness"),
		containerd: parts.dir,
		Dir:        dir,
		StateDir:   filepath.Join(dir, "state"),
		RuntimeDir: filepath.Join(dir, "runtime"),
		NRISocket:  filepath.Join(dir, "nri.sock"),
		cgroup:     cgroupRoot(os.Getenv(dirVar)),
		applied:    make(map[string]*applied),
		inventory:  filepath.Join(dir, "inventory", "inventory.yaml"),
		manifests:  filepath.Join(dir, "manifests"),
		parts:      parts,
	}
	if opts.Products != "" {
		n.parts.products = opts.Products
	}
	if opts.Containerd2 {
		n.containerd = filepath.Join(filepath.Dir(parts.dir), "containerd2")
	}
	if err := emptyDir(kubeletRoot); err != nil {
		t.Fatalf("forget an earlier node: %v", err)
	}
	for _, dir := range []string{n.manifests, filepath.Dir(n.inventory), n.witness} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatalf("make a directory of the node: %v", err)
		}
	}
	if opts.StateDirSize > 0 {
		if err := os.Mkdir(n.StateDir, 0o700); err != nil {
			t.Fatalf("make the state directory: %v", err)
		}
		MountTmpfs(t, n.StateDir, opts.StateDirSize)
	}
	n.WriteConfig(t, opts.Config)
	if n.Shim {
		n.installShim(t)
	}
	n.declareProcesses(t)
	t.Cleanup(func() { n.stop(t) })

	n.Containerd.Start(t)
	n.CRI = cri.NewRuntimeServiceClient(Dial(t, n.Address()))
	n.podResources = podresources.NewPodResourcesListerClient(Dial(t, podResourcesSock))
	n.WaitContainerd(t)
	n.importImage(t)
	if opts.Inventory != nil {
		n.WriteInventory(t, opts.Inventory)
	}
	if opts.NoKubelet {
		n.ApplyConfig(t)
		return n
	}
	if !n.NRIOff {
		n.Plugin.Start(t)
	}
	n.Kubelet.Start(t)
	n.WaitKubelet(t)
	n.Advertiser.Start(t)
	if n.NRIOff {
		n.WaitOffered(t)
		return n
	}
	n.WaitReady(t)
	return n
}

// stop ends the node's processes and checks that the product's end well.
func (n *Node) stop(t *testing.T) {
	n.CheckWitness(t)
	if t.Failed() {
		n.DumpLogs(t)
		t.Logf("all logs are in %s", filepath.Dir(n.Kubelet.log))
	}
	for _, p := range []*Process{n.Advertiser, n.Plugin} {
		if p.Running() {
			p.Stop(t)
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
	return []*Process{n.Containerd, n.Kubelet, n.Plugin, n.Advertiser}
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
	if err := os.MkdirAll(logs, 0o755); err != nil {
		t.Fatalf("make the directory for logs: %v", err)
	}
	containerdConfig := n.writeContainerdConfig(t)
	kubeletConfig := n.writeKubeletConfig(t)
	places := []string{"--state-dir", n.StateDir, "--runtime-dir", n.RuntimeDir}
	advertiserFlags := slices.Concat(places, []string{"--config", n.ConfigFile(), "--cri-socket", n.Address(), "--log-level", cmp.Or(n.LogLevel, "debug")}, n.AdvertiserFlags)
	if n.Replicas > 0 {
		advertiserFlags = append(advertiserFlags, "--replicas", fmt.Sprint(n.Replicas))
	}
	pluginFlags := slices.Concat(places, []string{"--nri-socket", n.NRISocket, "--cri-socket", n.Address()}, n.PluginFlags)
	daemon := func(program string, args []string) func() *exec.Cmd {
		return func() *exec.Cmd { return exec.Command(n.parts.Product(program), args...) }
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
		return exec.Command(n.parts.Stock("kubelet"),
			"--config", kubeletConfig, "--hostname-override", Name, "--root-dir", kubeletRoot, "--v", "3")
	})
	n.Advertiser = NewProcess("directx-advertiser", filepath.Join(logs, "directx-advertiser.log"),
		daemon("directx-advertiser", advertiserFlags))
	for _, p := range []*Process{n.Kubelet, n.Advertiser} {
		p.onStart = func() { n.registering = n.Kubelet.Mark() }
	}
	n.Plugin = NewProcess("directx-nri", filepath.Join(logs, "directx-nri.log"),
		daemon("directx-nri", pluginFlags))
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
	Eventually(t, startTimeout, "containerd serves CRI", func() error {
		if !n.Containerd.Running() {
			t.Fatalf("containerd ended\n%s", n.Containerd.Tail(30))
		}
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
	Eventually(t, startTimeout, "the kubelet is up", func() error {
		if !n.Kubelet.Running() {
			t.Fatalf("the kubelet ended\n%s", n.Kubelet.Tail(30))
		}
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
	Eventually(t, startTimeout, "the plugin is connected to containerd", func() error {
		if !n.Plugin.Running() {
			t.Fatalf("the plugin ended\n%s", n.Plugin.Tail(30))
		}
		return readiness.Check(context.Background(), filepath.Join(n.RuntimeDir, readiness.SocketName))
	})
}

// WaitReady waits until the plugin is connected and the kubelet offers every
// healthy replica of the inventory.
func (n *Node) WaitReady(t testing.TB) {
	t.Helper()
	n.WaitPlugin(t)
	n.WaitOffered(t)
}

// WaitOffered waits until the kubelet offers every healthy replica of the
// inventory.
func (n *Node) WaitOffered(t testing.TB) {
	t.Helper()
	want := n.offered()
	Eventually(t, startTimeout, "the kubelet offers the node's GPUs", func() error {
		if !n.Advertiser.Running() {
			t.Fatalf("the advertiser ended\n%s", n.Advertiser.Tail(30))
		}
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

// Assigned returns the device IDs that the kubelet gave to a container of a
// pod, by resource.
func (n *Node) Assigned(t testing.TB, pod, container string) map[string][]string {
	t.Helper()
	assigned := make(map[string][]string)
	for _, h := range n.Held(t) {
		if h.Pod == pod && h.Container == container {
			assigned[h.Resource] = append(assigned[h.Resource], h.Replica)
		}
	}
	return assigned
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

// emptyDir removes what is in a directory.
func emptyDir(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if err := os.RemoveAll(filepath.Join(dir, entry.Name())); err != nil {
			return err
		}
	}
	return nil
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
