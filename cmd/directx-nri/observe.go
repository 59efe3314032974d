package main

import (
	"context"
	"fmt"

	"github.com/sirupsen/logrus"

	"directx-nri/internal/cli"
	"directx-nri/internal/config"
	"directx-nri/internal/httpserver"
	"directx-nri/internal/metrics"
)

// newMetrics returns what counts for the configuration c, nil where nobody asks.
func newMetrics(c config.Config) *metrics.Metrics {
	if c.PluginMetricsAddress == "" {
		return nil
	}
	return metrics.New("directx-nri", cli.Version(version))
}

// listen returns the server of metrics and health, nil when the configuration
// asks for none.
func listen(ctx context.Context, c config.Config, m *metrics.Metrics, alive func() error, registered func() bool, log *logrus.Logger) (*httpserver.Server, error) {
	if c.PluginMetricsAddress == "" {
		return nil, nil
	}
	server, err := httpserver.Listen(ctx, "metrics.pluginAddress", c.PluginMetricsAddress, httpserver.Pages{
		Metrics: m.Handler(log),
		Healthy: func(context.Context) error { return alive() },
		Ready: func(context.Context) error {
			if !registered() {
				return fmt.Errorf("not registered with the container runtime on %s: is containerd running, and NRI enabled in its configuration?", c.Containerd.NRISocket)
			}
			return nil
		},
	})
	if err != nil {
		return nil, err
	}
	log.WithField("address", server.Address()).Info("metrics and health are served, to whoever asks")
	return server, nil
}
