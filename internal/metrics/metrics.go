// Package metrics has the Prometheus metrics of the daemons, and serves them. All names
// begin with directx_, and units are base units.
// https://prometheus.io/docs/practices/naming/
package metrics

import (
	"net/http"
	"runtime"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/sirupsen/logrus"
)

const namespace = "directx"

// Metrics has the metrics of one process. Values of labels are valid UTF-8. A vector without labels has no
// value until it is set: each program shows only the metrics that it has.
type Metrics struct {
	registry *prometheus.Registry

	Allocations        *prometheus.CounterVec   // by resource
	AllocationFailures *prometheus.CounterVec   // by resource and reason
	StartChecks        *prometheus.HistogramVec // by resource and result
	Hooks              *prometheus.HistogramVec // without labels
	Refusals           *prometheus.CounterVec   // by reason

	nodeInfo             *prometheus.GaugeVec   // by operating system and modes
	reloads              *prometheus.CounterVec // by result
	lastReloadSuccessful *prometheus.GaugeVec   // without labels
}

// New returns the metrics of a program of that name and version.
func New(program, version string) *Metrics {
	registry := prometheus.NewRegistry()
	factory := promauto.With(registry)
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return factory.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help}, labels)
	}
	gauges := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return factory.NewGaugeVec(prometheus.GaugeOpts{Namespace: namespace, Name: name, Help: help}, labels)
	}
	histograms := func(name, help string, labels ...string) *prometheus.HistogramVec {
		// In seconds. Hooks are limited to 1.2 s, and containerd waits 2 s for them.
		buckets := []float64{.0005, .001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2}
		return factory.NewHistogramVec(prometheus.HistogramOpts{Namespace: namespace, Name: name, Help: help, Buckets: buckets}, labels)
	}
	gauges("build_info", "Always 1.", "program", "version", "goversion").WithLabelValues(program, version, runtime.Version()).Set(1)
	registry.MustRegister(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), collectors.NewGoCollector())
	return &Metrics{
		registry:             registry,
		Allocations:          counters("allocations_total", "Recorded allocations, one for each container and resource.", "resource"),
		AllocationFailures:   counters("allocation_failures_total", "Refused or failed requests: invalid_request, concurrent, canceled, gpu, other.", "resource", "reason"),
		StartChecks:          histograms("start_check_duration_seconds", "Duration of the check of the NRI plugin before a container starts.", "resource", "result"),
		Hooks:                histograms("hook_duration_seconds", "Time that containerd waited for the hook CreateContainer."),
		Refusals:             counters("refusals_total", "Refused containers.", "reason"),
		nodeInfo:             gauges("node_info", "The modes in force; always 1.", "os", "assignment", "driver_files", "injection"),
		reloads:              counters("config_reloads_total", "Compilations of the configuration: applied, refused.", "result"),
		lastReloadSuccessful: gauges("config_last_reload_successful", "0 if the last configuration was refused, otherwise 1."),
	}
}

// Handler serves the metrics. Errors of gathering are logged.
func (m *Metrics) Handler(log logrus.FieldLogger) http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{ErrorLog: log, ErrorHandling: promhttp.ContinueOnError})
}

// SetNodeInfo sets the node's operating system and the modes in force, in place of earlier ones.
func (m *Metrics) SetNodeInfo(os, assignment, driverFiles, injection string) {
	m.nodeInfo.Reset()
	m.nodeInfo.WithLabelValues(os, assignment, driverFiles, injection).Set(1)
}

// ConfigRead records that a valid configuration was read.
func (m *Metrics) ConfigRead() { m.lastReloadSuccessful.WithLabelValues().Set(1) }

// ConfigApplied counts a changed configuration that came into force, after [Metrics.ConfigRead].
func (m *Metrics) ConfigApplied() { m.reloads.WithLabelValues("applied").Inc() }

// ConfigRefused records that a configuration was refused.
func (m *Metrics) ConfigRefused() {
	m.reloads.WithLabelValues("refused").Inc()
	m.lastReloadSuccessful.WithLabelValues().Set(0)
}
