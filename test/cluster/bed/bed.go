//go:build e2e && linux

package bed

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	node "directx-nri/test/bed"
)

// NodeName is the name of the cluster's node.
const NodeName = "node"

// Places on the node.
const (
	ContainerdConfig = "/etc/containerd/config.toml"
	containerdSocket = "/run/containerd/containerd.sock"
	kubeletRoot      = "/var/lib/kubelet"
)

// nodeAddress is the node's address, of a range that is for documentation. The
// kubelet takes no address of the loopback range.
const nodeAddress = "192.0.2.10"

const (
	// startTimeout bounds how long a part may take to serve.
	startTimeout = 90 * time.Second
	// callTimeout bounds one question to a part.
	callTimeout = 10 * time.Second
)

// Main runs the tests of m and returns the exit status.
func Main(m *testing.M) int {
	return node.Ground{
		Folders: []node.Folder{
			{Path: "/etc", Copy: true}, {Path: "/run"}, {Path: bin}, {Path: "/var/lib"}, {Path: "/var/log"},
			{Path: "/opt/containerd"}, {Path: "/opt/nri"}, // not all of it: Go may be there
		},
		Network: []netip.Addr{netip.MustParseAddr(nodeAddress)},
		Check:   check,
	}.Main(m)
}

// The programs of a cluster beside those of a node, where build.sh puts them.
const (
	etcd              = "../cluster/etcd"
	apiServer         = "../cluster/kube-apiserver"
	controllerManager = "../cluster/kube-controller-manager"
	scheduler         = "../cluster/kube-scheduler"
	kubectl           = "../cluster/kubectl"
	helm              = "helm"
	// plugins is the folder of Debian's package containernetworking-plugins.
	plugins = "/usr/lib/cni"
)

// check returns what is missing on this machine, with the command that makes it.
func check(p node.Parts) error {
	if err := p.CheckNode(); err != nil {
		return err
	}
	for _, name := range []string{etcd, apiServer, controllerManager, scheduler, kubectl, helm} {
		if err := p.CheckStock(name, "cluster"); err != nil {
			return err
		}
	}
	for _, name := range []string{"bridge", "host-local", "loopback"} {
		if _, err := os.Stat(filepath.Join(plugins, name)); err != nil {
			return fmt.Errorf("a CNI plugin is missing: run test/parts/build.sh cluster as root, or install the package containernetworking-plugins (%w)", err)
		}
	}
	return nil
}

// bin is where containerd and its shim are on the node.
const bin = "/usr/local/bin"

// Cluster is a running cluster.
type Cluster struct {
	// Parts are the programs that it is made of.
	Parts node.Parts
	// Dir is a folder of the run's own. It is not one of the node's.
	Dir string

	Etcd, APIServer, ControllerManager, Scheduler, Kubelet *node.Process
	// Containerd is what starts containerd, and starts it again when it ends.
	Containerd *node.Process

	client *http.Client
	cri    cri.RuntimeServiceClient
	logs   string // the folder of the run's logs
}

// Start starts a cluster and waits until its node is ready. It is stopped when
// the test ends. It skips the test when the machine cannot run one.
func Start(t *testing.T) *Cluster {
	t.Helper()
	if reason := node.SkipReason(); reason != "" {
		t.Skip(reason)
	}
	parts, err := node.FindParts()
	if err != nil {
		t.Fatal(err)
	}
	c := &Cluster{Parts: parts, Dir: filepath.Join(node.RunDir(), "cluster"), client: newClient()}
	c.cri = cri.NewRuntimeServiceClient(node.Dial(t, containerdSocket))
	c.writeFiles(t)
	c.declareProcesses(t)
	t.Cleanup(func() { c.stop(t) })

	c.Containerd.Start(t)
	c.Etcd.Start(t)
	c.waitListening(t, c.Etcd, etcdAddress)
	c.APIServer.Start(t)
	c.WaitContainerd(t)
	c.importOwnImages(t)
	node.Eventually(t, startTimeout, "the API server serves", func() error {
		c.mustRun(t, c.APIServer)
		return c.Get("/readyz", nil)
	})
	for _, p := range []*node.Process{c.ControllerManager, c.Scheduler, c.Kubelet} {
		p.Start(t)
	}
	c.WaitReady(t)
	return c
}

// stop ends the cluster's processes. Containers end with the namespace.
func (c *Cluster) stop(t *testing.T) {
	t.Helper()
	for _, p := range c.processes() {
		if p.Running() {
			p.Kill(t)
		}
	}
	if t.Failed() {
		t.Logf("all logs are in %s", c.logs)
	}
}

func (c *Cluster) processes() []*node.Process {
	return []*node.Process{c.Kubelet, c.Scheduler, c.ControllerManager, c.APIServer, c.Etcd, c.Containerd}
}

// mustRun ends the test when a process has ended.
func (c *Cluster) mustRun(t testing.TB, p *node.Process) {
	t.Helper()
	if !p.Running() {
		t.Fatalf("%s ended\n%s", p.Name, p.Tail(30))
	}
}

// waitListening waits until a process takes connections.
func (c *Cluster) waitListening(t testing.TB, p *node.Process, address string) {
	t.Helper()
	node.Eventually(t, startTimeout, p.Name+" listens", func() error {
		c.mustRun(t, p)
		conn, err := net.Dial("tcp", address)
		if err != nil {
			return err
		}
		return conn.Close()
	})
}

// WaitContainerd waits until containerd serves.
func (c *Cluster) WaitContainerd(t testing.TB) {
	t.Helper()
	node.Eventually(t, startTimeout, "containerd serves", func() error {
		c.mustRun(t, c.Containerd)
		ctx, cancel := context.WithTimeout(t.Context(), callTimeout)
		defer cancel()
		out, err := exec.CommandContext(ctx, c.Parts.Stock("ctr"), "version").CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
}

// WaitReady waits until the node is ready for pods.
func (c *Cluster) WaitReady(t testing.TB) {
	t.Helper()
	node.Eventually(t, startTimeout, "the node is ready", func() error {
		for _, p := range []*node.Process{c.ControllerManager, c.Scheduler, c.Kubelet} {
			c.mustRun(t, p)
		}
		n, err := c.Node(NodeName)
		if err != nil {
			return err
		}
		if len(n.Spec.Taints) > 0 {
			return fmt.Errorf("it has the taint %v", n.Spec.Taints[0])
		}
		for _, condition := range n.Status.Conditions {
			if condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue {
				return nil
			}
		}
		return fmt.Errorf("its conditions are %v", n.Status.Conditions)
	})
}
