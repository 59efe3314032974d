//go:build e2e && linux

package bed

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// reloadTimeout bounds how long the advertiser may take to read a configuration
// file that has changed.
const reloadTimeout = 15 * time.Second

// Configure replaces the configuration file, as [Node.WriteConfig] does, and waits until
// it is in force. It must differ from the one before. If offered is nil, the kubelet's resources
// must stay registered. Otherwise, the advertiser registers again, and Configure waits until the
// kubelet offers this number of devices by resource.
func (n *Node) Configure(t testing.TB, more string, offered map[string]int) {
	t.Helper()
	mark, advertiser := n.Kubelet.Mark(), n.Advertiser.Mark()
	n.ConfigureUntil(t, more, "The configuration has changed and is in force")
	if offered != nil {
		n.registering, n.Offered = mark, offered
		n.WaitOffered(t)
	} else if log := n.Advertiser.Log(advertiser); strings.Contains(log, "Registered with the kubelet") {
		t.Errorf("the advertiser has registered again: %s", log)
	}
}

// ConfigureUntil replaces the configuration file and waits for a line of the advertiser's
// log that has text in it.
func (n *Node) ConfigureUntil(t testing.TB, more, text string) (line string) {
	t.Helper()
	mark := n.Advertiser.Mark()
	n.WriteConfig(t, more)
	Eventually(t, reloadTimeout, "the advertiser logs: "+text, func() error {
		for logged := range strings.Lines(n.Advertiser.Log(mark)) {
			if strings.Contains(logged, text) {
				line = strings.TrimSpace(logged)
				return nil
			}
		}
		return fmt.Errorf("its log since the change: %s", n.Advertiser.Log(mark))
	})
	return line
}

// Holding is one replica that a container has, according to the kubelet.
type Holding struct {
	Pod, Container, Resource, Replica string
	GPU                               int
}

// Held returns what all containers have, according to the kubelet.
func (n *Node) Held(t testing.TB) (held []Holding) {
	t.Helper()
	// The kubelet limits the rate of calls.
	Eventually(t, 10*time.Second, "the kubelet lists what containers have", func() (err error) {
		held, err = n.Holdings()
		return err
	})
	return held
}

// Holdings is Held by one call of the kubelet.
func (n *Node) Holdings() ([]Holding, error) {
	response, err := n.podResources.List(context.Background(), &podresources.ListPodResourcesRequest{})
	var held []Holding
	for _, p := range response.GetPodResources() {
		for _, c := range p.GetContainers() {
			for _, devices := range c.GetDevices() {
				for _, id := range devices.GetDeviceIds() {
					held = append(held, Holding{
						Pod: strings.TrimSuffix(p.GetName(), "-"+Name), Container: c.GetName(),
						Resource: devices.GetResourceName(), Replica: id, GPU: GPUOfReplica(id),
					})
				}
			}
		}
	}
	return held, err
}
