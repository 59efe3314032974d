// Package metrics has the Prometheus metrics of the daemons, and serves them. All names
// begin with directx_, and units are base units.
// https://prometheus.io/docs/practices/naming/
//
// [Metrics] implements the Observer interfaces of other packages.
package metrics

import (
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/sirupsen/logrus"
)

const namespace = "directx"

// Metrics are the metrics of one process.
type Metrics struct {
	registry *prometheus.Registry

	allocations, allocationFailures *prometheus.CounterVec
	startChecks, hooks              *prometheus.HistogramVec
	refusals                        *prometheus.CounterVec
	reloads                         *prometheus.CounterVec
	lastReload, lastReloadSuccess   *prometheus.GaugeVec
	assignment, injection           *prometheus.GaugeVec
}

// New returns the metrics of a program of that name and version.
func New(program, version string) *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry()}
	named := func(name, help string) prometheus.Opts {
		return prometheus.Opts{Namespace: namespace, Name: name, Help: help}
	}
	in := promauto.With(m.registry)
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return in.NewCounterVec(prometheus.CounterOpts(named(name, help)), labels)
	}
	gauges := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return in.NewGaugeVec(prometheus.GaugeOpts(named(name, help)), labels)
	}
	histograms := func(name, help string, labels ...string) *prometheus.HistogramVec {
		// In seconds. A hook may take 1.2, and the runtime gives it 2.
		buckets := []float64{.0005, .001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2}
		return in.NewHistogramVec(prometheus.HistogramOpts{Namespace: namespace, Name: name, Help: help, Buckets: buckets}, labels)
	}
	m.allocations = counters("allocations_total", "Allocations that were recorded, one for each container and resource.", "resource")
	m.allocationFailures = counters("allocation_failures_total", "Requests for an allocation that were refused or failed.", "resource", "reason")
	m.startChecks = histograms("start_check_duration_seconds", "Duration of the check before a container's start, and whether the container may start.", "resource", "result")
	m.hooks = histograms("hook_duration_seconds", "How long the container runtime waited for an NRI hook.", "hook")
	m.refusals = counters("refusals_total", "Containers that were refused, by component and reason.", "by", "reason")
	m.reloads = counters("config_reloads_total", "Changes of the configuration by result.", "result")
	m.lastReload = gauges("config_last_reload_successful", "1 if the last version of the configuration is in force, 0 if it was refused.")
	m.lastReloadSuccess = gauges("config_last_reload_success_timestamp_seconds", "Time when the configuration in force was read.")
	m.assignment = gauges("assignment_mode", "How devices are assigned to containers, and why.", "mode", "reason")
	m.injection = gauges("injection_mode", "What injects GPUs into containers.", "mode")
	gauges("build_info", "Version of the program; always 1.", "program", "version", "goversion").WithLabelValues(program, version, runtime.Version()).Set(1)
	m.registry.MustRegister(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), collectors.NewGoCollector())
	return m
}

// Handler serves the metrics. Errors of gathering are logged.
func (m *Metrics) Handler(log logrus.FieldLogger) http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{
		ErrorLog: errorLog{log}, ErrorHandling: promhttp.ContinueOnError,
		MaxRequestsInFlight: 4, Timeout: 5 * time.Second,
		// Compression of ten kilobytes takes more memory than everything else here.
		DisableCompression: true,
	})
}

type errorLog struct{ log logrus.FieldLogger }

// Println implements promhttp.Logger.
func (l errorLog) Println(v ...any) { l.log.Warn(strings.TrimSpace(fmt.Sprintln(v...))) }

// Allocated counts an allocation of a resource to one container.
func (m *Metrics) Allocated(resource string) {
	m.allocations.WithLabelValues(text(resource)).Inc()
}

// AllocationFailed counts a refused request for an allocation; reason is one of a few
// words.
func (m *Metrics) AllocationFailed(resource, reason string) {
	m.allocationFailures.WithLabelValues(text(resource), text(reason)).Inc()
}

// StartChecked records how long a check before a container's start took, and whether
// the container may start.
func (m *Metrics) StartChecked(resource string, took time.Duration, passed bool) {
	result := map[bool]string{true: "passed", false: "refused"}[passed]
	m.startChecks.WithLabelValues(text(resource), result).Observe(took.Seconds())
}

// HookDone records how long an NRI hook took.
func (m *Metrics) HookDone(hook string, took time.Duration) {
	m.hooks.WithLabelValues(text(hook)).Observe(took.Seconds())
}

// Refused counts a container that was not started; by and reason are each one of a few
// words.
func (m *Metrics) Refused(by, reason string) {
	m.refusals.WithLabelValues(text(by), text(reason)).Inc()
}

// ConfigRead records that a configuration came into force.
func (m *Metrics) ConfigRead(at time.Time) {
	m.lastReload.WithLabelValues().Set(1)
	m.lastReloadSuccess.WithLabelValues().Set(float64(at.UnixMilli()) / 1000)
}

// Reloaded records that a changed configuration came into force, or was refused with
// err.
func (m *Metrics) Reloaded(at time.Time, err error) {
	if err != nil {
		m.reloads.WithLabelValues("refused").Inc()
		m.lastReload.WithLabelValues().Set(0)
		return
	}
	m.reloads.WithLabelValues("applied").Inc()
	m.ConfigRead(at)
}

// SetAssignment records how devices are assigned to containers.
func (m *Metrics) SetAssignment(mode, reason string) {
	m.assignment.Reset()
	m.assignment.WithLabelValues(text(mode), text(reason)).Set(1)
}

// SetInjection records what injects GPUs into containers.
func (m *Metrics) SetInjection(mode string) {
	m.injection.Reset()
	m.injection.WithLabelValues(text(mode)).Set(1)
}

// text returns s as valid UTF-8, which label values must be.
func text(s string) string { return strings.ToValidUTF8(s, "�") }
