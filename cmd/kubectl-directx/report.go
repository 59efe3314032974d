package main

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/directx-nri/directx-nri/advertiser/nodelabels"
	"github.com/directx-nri/directx-nri/internal/cli"
	"github.com/directx-nri/directx-nri/internal/policy"
)

// row describes a GPU that a node offers as a resource. If the node's metrics are unknown, it describes
// the resource.
type row struct {
	Node     string `json:"node"` // "" for pods that wait for a node
	Product  string `json:"product,omitempty"`
	Resource string `json:"resource,omitempty"`
	GPU      string `json:"gpu,omitempty"`
	Replicas int64  `json:"replicas"`
	// InUse is nil if it is not known.
	InUse *int64 `json:"inUse,omitempty"`
	// Pods are in the first row of a resource, because nodes do not publish which pod has which GPU.
	// Problems are in the first row of a node.
	Pods     []string `json:"pods,omitempty"`
	Problems []string `json:"problems,omitempty"`
}

// rows returns the rows of the nodes that have GPUs or pods that request GPUs, or problems.
func (c cluster) rows() []row {
	rows := []row{}
	resources := c.resources()
	for _, n := range append(c.nodes, corev1.Node{}) {
		var nodeRows []row
		for _, name := range resources {
			nodeRows = append(nodeRows, c.resourceRows(n, name)...)
		}
		problems := c.problems(n, resources)
		if len(nodeRows) == 0 && len(problems) > 0 {
			nodeRows = []row{{Node: n.Name}}
		}
		if len(nodeRows) > 0 {
			nodeRows[0].Problems = problems
		}
		rows = append(rows, nodeRows...)
	}
	return rows
}

func (c cluster) resourceRows(n corev1.Node, resource string) []row {
	allocatable := n.Status.Allocatable[corev1.ResourceName(resource)]
	var pods []string
	for _, pod := range c.pods {
		if pod.Spec.NodeName == n.Name && requests(pod, resource) {
			pods = append(pods, pod.Namespace+"/"+pod.Name)
		}
	}
	rows := c.metrics[n.Name].gpus(resource)
	if len(rows) == 0 && (allocatable.Value() > 0 || len(pods) > 0) {
		rows = []row{{Replicas: allocatable.Value()}}
	}
	for i := range rows {
		rows[i].Node, rows[i].Product, rows[i].Resource = n.Name, n.Labels[nodelabels.Prefix+"product"], resource
	}
	if len(rows) > 0 {
		rows[0].Pods = pods
	}
	return rows
}

// resources returns the names of the GPUs' resources: the default ones, and those in metrics.
func (c cluster) resources() []string {
	var names []string
	for _, r := range policy.DefaultResources() {
		names = append(names, r.Name)
	}
	for _, m := range c.metrics {
		for labels := range m.values("directx_resource_registered", "resource") {
			names = append(names, labels[0])
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func requests(pod corev1.Pod, resources ...string) bool {
	for _, container := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		for name := range container.Resources.Limits {
			if slices.Contains(resources, string(name)) {
				return true
			}
		}
	}
	return false
}

// problems returns the problems of a node, and why its pods of directx-advertiser and those that
// request GPUs are not ready.
func (c cluster) problems(n corev1.Node, resources []string) (problems []string) {
	add := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	if err := c.scrapeErrors[n.Name]; err != nil {
		add("the metrics cannot be read: %v", err)
	}
	for _, inForce := range c.metrics[n.Name].values("directx_config_last_reload_successful") {
		if inForce == 0 {
			add("the configuration is refused, and the one before is in force")
		}
	}
	for _, name := range resources {
		capacity, allocatable := n.Status.Capacity[corev1.ResourceName(name)], n.Status.Allocatable[corev1.ResourceName(name)]
		if missing := capacity.Value() - allocatable.Value(); missing > 0 {
			add("%d of %d %s cannot be allocated", missing, capacity.Value(), name)
		}
	}
	for _, pod := range c.pods {
		ready := slices.ContainsFunc(pod.Status.Conditions, func(condition corev1.PodCondition) bool {
			return condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue
		})
		if ready || pod.Spec.NodeName != n.Name || !requests(pod, resources...) && advertiserPort(pod) == "" {
			continue
		}
		last := corev1.Event{Message: "not ready"}
		for _, event := range c.events {
			if event.InvolvedObject.UID == pod.UID && !seenAt(event).Before(seenAt(last)) {
				last = event
			}
		}
		add("pod %s/%s: %s", pod.Namespace, pod.Name, last.Message)
	}
	return problems
}

// seenAt returns when an event was seen last. The scheduler's events have no LastTimestamp.
func seenAt(e corev1.Event) time.Time {
	if e.LastTimestamp.IsZero() {
		return e.EventTime.Time
	}
	return e.LastTimestamp.Time
}

func (m metrics) gpus(resource string) (gpus []row) {
	inUse := m.values("directx_replicas_in_use", "resource", "gpu")
	for labels, replicas := range m.values("directx_replicas", "resource", "gpu") {
		if labels[0] != resource {
			continue
		}
		gpu := row{GPU: labels[1], Replicas: int64(replicas)}
		if value, ok := inUse[labels]; ok {
			gpu.InUse = new(int64(value))
		}
		gpus = append(gpus, gpu)
	}
	slices.SortFunc(gpus, func(a, b row) int { return strings.Compare(a.GPU, b.GPU) })
	return gpus
}

// values returns the values of a gauge by its values of these labels.
func (m metrics) values(name string, labels ...string) map[[2]string]float64 {
	values := map[[2]string]float64{}
	for _, series := range m[name].GetMetric() {
		var key [2]string
		for _, pair := range series.GetLabel() {
			if i := slices.Index(labels, pair.GetName()); i >= 0 {
				key[i] = pair.GetValue()
			}
		}
		values[key] = series.GetGauge().GetValue()
	}
	return values
}

func printRows(w io.Writer, format string, rows []row) error {
	return cli.List[row]{
		Header: []string{"NODE", "PRODUCT", "RESOURCE", "GPU", "REPLICAS", "IN USE", "PODS", "PROBLEMS"},
		Cells: func(r row) []string {
			inUse := ""
			if r.InUse != nil {
				inUse = strconv.FormatInt(*r.InUse, 10)
			}
			return []string{
				r.Node, r.Product, r.Resource, r.GPU, strconv.FormatInt(r.Replicas, 10), inUse,
				strings.Join(r.Pods, ","), strings.Join(r.Problems, "; "),
			}
		},
	}.Print(w, format, rows)
}
