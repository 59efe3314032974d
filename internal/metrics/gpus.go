package metrics

import (
	"context"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Node is the state of a node at one moment.
type Node struct {
	// Devices are all devices, offered or not.
	Devices []Device
	// Resources are offered to the kubelet.
	Resources []Resource
}

// Device is one device.
type Device struct {
	// Kind is "display", "compute" or "none".
	Kind    string
	Healthy bool
}

// Resource is one extended resource.
type Resource struct {
	Name string
	// Registered reports whether the kubelet watches its list.
	Registered bool
	GPUs       []GPU
}

// GPU is one GPU of a resource.
type GPU struct {
	// Name is unique in the resource.
	Name string
	// Replicas is the number of containers that can share the GPU.
	Replicas int
	// InUse is the number of replicas that containers hold, nil if unknown.
	InUse *int
}

// scrapeTimeout bounds the collection for one scrape.
const scrapeTimeout = 2 * time.Second

// CollectNode adds metrics of the node's state, which look returns at each scrape.
func (m *Metrics) CollectNode(look func(context.Context) Node) {
	describe := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(prometheus.BuildFQName(namespace, "", name), help, labels, nil)
	}
	devices := describe("devices", "Devices of this node by kind and health, offered or not.", "kind", "health")
	replicas := describe("replicas", "Number of containers that can share the GPU.", "resource", "gpu")
	inUse := describe("replicas_in_use", "Number of replicas that containers hold, as reported by the kubelet; ordinary init containers are not included.", "resource", "gpu")
	registered := describe("resource_registered", "1 while the kubelet watches the resource's list of GPUs.", "resource")
	m.registry.MustRegister(prometheus.CollectorFunc(func(to chan<- prometheus.Metric) {
		ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
		defer cancel()
		node := look(ctx)
		gauge := func(d *prometheus.Desc, value int, labels ...string) {
			for i := range labels {
				labels[i] = strings.ToValidUTF8(labels[i], "�")
			}
			to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(value), labels...)
		}
		for device, number := range count(node.Devices) {
			gauge(devices, number, device.Kind, map[bool]string{true: "healthy", false: "unhealthy"}[device.Healthy])
		}
		for _, r := range node.Resources {
			gauge(registered, map[bool]int{true: 1}[r.Registered], r.Name)
			for _, g := range r.GPUs {
				gauge(replicas, g.Replicas, r.Name, g.Name)
				if g.InUse != nil {
					gauge(inUse, *g.InUse, r.Name, g.Name)
				}
			}
		}
	}))
}

// count returns the number of devices of each kind and health. Zeros are included, so
// that no series comes and goes.
func count(devices []Device) map[Device]int {
	counts := map[Device]int{{"display", true}: 0, {"display", false}: 0, {"compute", true}: 0, {"compute", false}: 0}
	for _, d := range devices {
		counts[d]++
	}
	return counts
}
