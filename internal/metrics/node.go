package metrics

import "github.com/prometheus/client_golang/prometheus"

// NodeMetrics has the metrics of a node's state at one moment. Values of labels are valid UTF-8.
type NodeMetrics struct {
	Devices    *prometheus.GaugeVec // by kind and health
	Registered *prometheus.GaugeVec // by resource
	Replicas   *prometheus.GaugeVec // by resource and GPU
	InUse      *prometheus.GaugeVec // by resource and GPU
}

// CollectNode adds metrics of the node's state, which set fills in at each scrape.
func (m *Metrics) CollectNode(set func(NodeMetrics)) {
	gauges := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: namespace, Name: name, Help: help}, labels)
	}
	m.registry.MustRegister(prometheus.CollectorFunc(func(to chan<- prometheus.Metric) {
		n := NodeMetrics{
			Devices:    gauges("devices", "Devices, also those not advertised (kind none).", "kind", "health"),
			Registered: gauges("resource_registered", "1 while the kubelet watches the resource.", "resource"),
			Replicas:   gauges("replicas", "Replicas in the kubelet's list.", "resource", "gpu"),
			InUse:      gauges("replicas_in_use", "Replicas that containers hold, up to 5 s ago; absent while the kubelet does not answer.", "resource", "gpu"),
		}
		for _, kind := range []string{"display", "compute"} { // They are 0 without a device, not absent.
			n.Devices.WithLabelValues(kind, "healthy")
			n.Devices.WithLabelValues(kind, "unhealthy")
		}
		set(n)
		for _, v := range []*prometheus.GaugeVec{n.Devices, n.Registered, n.Replicas, n.InUse} {
			v.Collect(to)
		}
	}))
}
