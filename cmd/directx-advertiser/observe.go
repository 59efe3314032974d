package main

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/sirupsen/logrus"

	"directx-nri/advertiser"
	"directx-nri/internal/cli"
	"directx-nri/internal/config"
	"directx-nri/internal/httpserver"
	"directx-nri/internal/metrics"
)

// newMetrics returns what counts for the configuration c, nil where nobody asks.
func newMetrics(c config.Config) *metrics.Metrics {
	if c.MetricsAddress == "" {
		return nil
	}
	return metrics.New("directx-advertiser", cli.Version(version))
}

// listen returns the server of metrics and health, nil when the configuration
// asks for none.
func listen(ctx context.Context, c config.Config, m *metrics.Metrics, device *advertiser.Advertiser, there func(context.Context) error, log *logrus.Logger) (*httpserver.Server, error) {
	if c.MetricsAddress == "" {
		return nil, nil
	}
	m.CollectNode(node(device.Status, advertiser.PodResourcesHeld(c.Kubelet.PodResources)))
	server, err := httpserver.Listen(ctx, "metrics.address", c.MetricsAddress, httpserver.Pages{
		Metrics: m.Handler(log),
		Healthy: func(context.Context) error { return device.Alive() },
		Ready:   func(ctx context.Context) error { return errors.Join(device.Registered(), there(ctx)) },
	})
	if err != nil {
		return nil, err
	}
	log.WithField("address", server.Address()).Info("metrics and health are served, to whoever asks")
	return server, nil
}

// node returns what there is on the node, for the metrics. held asks the kubelet
// what containers hold.
func node(status func() advertiser.Status, held func(context.Context) (map[string][]string, error)) func(context.Context) metrics.Node {
	return func(ctx context.Context) metrics.Node {
		now := status()
		inUse, err := held(ctx)
		var n metrics.Node
		for _, d := range now.Devices {
			n.Devices = append(n.Devices, metrics.Device{Kind: cmp.Or(string(d.Kind), "none"), Healthy: d.Healthy})
		}
		for _, r := range now.Resources {
			resource := metrics.Resource{Name: r.Name, Registered: r.Registered}
			counts := map[string]int{}
			for _, id := range inUse[r.Name] {
				if instanceID, ok := advertiser.ReplicaOf(id); ok {
					counts[instanceID]++
				}
			}
			for _, g := range r.GPUs {
				gpu := metrics.GPU{Name: gpuName(g, r.GPUs), Replicas: g.Replicas}
				if number := counts[g.InstanceID]; err == nil {
					gpu.InUse = &number
				}
				resource.GPUs = append(resource.GPUs, gpu)
			}
			n.Resources = append(n.Resources, resource)
		}
		return n
	}
}

// gpuName returns g's location path, or its instance ID where there is none or
// another GPU has the same.
func gpuName(g advertiser.GPUStatus, all []advertiser.GPUStatus) string {
	if slices.ContainsFunc(all, func(other advertiser.GPUStatus) bool {
		return other.InstanceID != g.InstanceID && other.LocationPath == g.LocationPath
	}) {
		return g.InstanceID
	}
	return cmp.Or(g.LocationPath, g.InstanceID)
}
