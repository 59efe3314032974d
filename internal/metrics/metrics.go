// Package metrics counts what our daemons do, for Prometheus.
//
// Each process has one registry of its own. All names begin with directx_, and
// units are Prometheus' base units.
// https://prometheus.io/docs/practices/naming/
//
// The methods of [Metrics] count. They implement the
// Observer interfaces of the packages that do the work: these know nothing of
// Prometheus. A nil *Metrics counts nothing.
package metrics

import (
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/sirupsen/logrus"
)

const namespace = "directx"

// Metrics is the metrics of one process.
type Metrics struct {
	registry *prometheus.Registry

	allocations, allocationFailures *prometheus.CounterVec
	startChecks, hooks              *prometheus.HistogramVec
	refusals                        *prometheus.CounterVec
	reloads                         *prometheus.CounterVec
	lastReload, lastReloadSuccess   prometheus.Gauge
	assignment, injection           *prometheus.GaugeVec
}

// hookBuckets are in seconds. A hook may take 1.2, and the runtime gives it 2.
func hookBuckets() []float64 {
	return []float64{.0005, .001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2}
}

// New returns the metrics of the named program and version. Those that a
// program has nothing to say about have no values.
func New(program, version string) *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry()}
	m.allocations = m.counters("allocations_total", "Allocations that were recorded, one for each container and resource.", "resource")
	m.allocationFailures = m.counters("allocation_failures_total", "Requests for an allocation that were refused or failed.", "resource", "reason")
	m.startChecks = m.histograms("start_check_duration_seconds", "How long the kubelet's question before a container's start took, and whether the container may start.", "resource", "result")
	m.hooks = m.histograms("hook_duration_seconds", "How long the container runtime waited for an NRI hook.", "hook")
	m.refusals = m.counters("refusals_total", "Containers that were not started, by who refused and why.", "by", "reason")
	m.reloads = m.counters("config_reloads_total", "Readings of the configuration file, at the start and whenever something changes beside it, by what came of them.", "result")
	m.lastReload = m.gauge("config_last_reload_successful", "1 when the configuration file that was read last is in force, 0 when it was refused and an earlier one still is.")
	m.lastReloadSuccess = m.gauge("config_last_reload_success_timestamp_seconds", "When the configuration that is in force was read.")
	m.assignment = m.gauges("assignment_mode", "How containers are given devices, and why so.", "mode", "reason")
	m.injection = m.gauges("injection_mode", "Who gives containers their GPUs.", "mode")
	build := m.gauges("build_info", "What runs: always 1.", "program", "version", "goversion")
	build.WithLabelValues(program, version, runtime.Version()).Set(1)
	m.registry.MustRegister(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), collectors.NewGoCollector())
	return m
}

func (m *Metrics) gauge(name, help string) prometheus.Gauge {
	g := prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Name: name, Help: help})
	m.registry.MustRegister(g)
	return g
}

func (m *Metrics) counters(name, help string, labels ...string) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help}, labels)
	m.registry.MustRegister(c)
	return c
}

func (m *Metrics) gauges(name, help string, labels ...string) *prometheus.GaugeVec {
	g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: namespace, Name: name, Help: help}, labels)
	m.registry.MustRegister(g)
	return g
}

func (m *Metrics) histograms(name, help string, labels ...string) *prometheus.HistogramVec {
	h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: namespace, Name: name, Help: help, Buckets: hookBuckets()}, labels)
	m.registry.MustRegister(h)
	return h
}

// Handler answers with the metrics. What cannot be gathered is logged.
func (m *Metrics) Handler(log logrus.FieldLogger) http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{
		ErrorLog: errorLog{log}, ErrorHandling: promhttp.ContinueOnError,
		// One who asks again and again does not keep us busy.
		MaxRequestsInFlight: 4, Timeout: 5 * time.Second,
		// A page is some ten kilobytes, and packing it takes more memory than all of
		// the rest here.
		DisableCompression: true,
	})
}

type errorLog struct{ log logrus.FieldLogger }

// Println implements promhttp.Logger.
func (l errorLog) Println(v ...any) { l.log.Warn(strings.TrimSpace(fmt.Sprintln(v...))) }

// Allocated counts an allocation of a resource to one container.
func (m *Metrics) Allocated(resource string) {
	if m != nil {
		m.allocations.WithLabelValues(text(resource)).Inc()
	}
}

// AllocationFailed counts a request for an allocation that was not met. reason
// is one word of a small set.
func (m *Metrics) AllocationFailed(resource, reason string) {
	if m != nil {
		m.allocationFailures.WithLabelValues(text(resource), text(reason)).Inc()
	}
}

// StartChecked notes how long the kubelet's question before a start took. passed
// reports whether the container may start.
func (m *Metrics) StartChecked(resource string, took time.Duration, passed bool) {
	if m != nil {
		m.startChecks.WithLabelValues(text(resource), result(passed)).Observe(took.Seconds())
	}
}

// HookDone notes how long an NRI hook took, whatever came of it.
func (m *Metrics) HookDone(hook string, took time.Duration) {
	if m != nil {
		m.hooks.WithLabelValues(text(hook)).Observe(took.Seconds())
	}
}

// Refused counts a container that was not started. by and reason are words of
// small sets.
func (m *Metrics) Refused(by, reason string) {
	if m != nil {
		m.refusals.WithLabelValues(text(by), text(reason)).Inc()
	}
}

// ConfigRead notes that the first configuration was read at a time.
func (m *Metrics) ConfigRead(at time.Time) {
	if m != nil {
		m.lastReload.Set(1)
		m.lastReloadSuccess.Set(float64(at.UnixMilli()) / 1000)
	}
}

// Reloaded notes that a changed configuration was read at a time, and is in
// force unless err is set.
func (m *Metrics) Reloaded(at time.Time, err error) {
	if m == nil {
		return
	}
	if err != nil {
		m.reloads.WithLabelValues("refused").Inc()
		m.lastReload.Set(0)
		return
	}
	m.reloads.WithLabelValues("applied").Inc()
	m.ConfigRead(at)
}

// SetAssignment says how containers are given devices from now on.
func (m *Metrics) SetAssignment(mode, reason string) {
	if m != nil {
		m.assignment.Reset()
		m.assignment.WithLabelValues(text(mode), text(reason)).Set(1)
	}
}

// SetInjection says who gives containers their GPUs from now on.
func (m *Metrics) SetInjection(mode string) {
	if m != nil {
		m.injection.Reset()
		m.injection.WithLabelValues(text(mode)).Set(1)
	}
}

func result(passed bool) string {
	if passed {
		return "passed"
	}
	return "refused"
}

// text returns s as a label's value, which must be UTF-8.
func text(s string) string { return strings.ToValidUTF8(s, "�") }
