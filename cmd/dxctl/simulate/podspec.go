package simulate

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"directx-nri/advertiser"
)

// These are the parts of Kubernetes' objects that decide about GPUs, under its
// names. The package k8s.io/api would have all of them, and make dxctl ten
// megabytes larger and each of its starts several milliseconds longer.
// https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/

type object struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   meta   `json:"metadata"`
}

type meta struct {
	Name         string            `json:"name"`
	GenerateName string            `json:"generateName"`
	Namespace    string            `json:"namespace"`
	Annotations  map[string]string `json:"annotations"`
}

// template is what pods are made from.
type template struct {
	Metadata meta    `json:"metadata"`
	Spec     PodSpec `json:"spec"`
}

// PodSpec is what is looked at of a pod.
type PodSpec struct {
	InitContainers   []ContainerSpec   `json:"initContainers"`
	Containers       []ContainerSpec   `json:"containers"`
	Volumes          []volume          `json:"volumes"`
	NodeSelector     map[string]string `json:"nodeSelector"`
	RuntimeClassName string            `json:"runtimeClassName"`
	SecurityContext  securityContext   `json:"securityContext"`
	ResourceClaims   []any             `json:"resourceClaims"`
	OS               struct {
		Name string `json:"name"`
	} `json:"os"`
	// OthersResources are the extended resources that it asks for and that are taken
	// for somebody else's.
	OthersResources []string `json:"-"`
}

// all returns the containers in the order in which they are started.
func (s PodSpec) all() []ContainerSpec { return slices.Concat(s.InitContainers, s.Containers) }

// ContainerSpec is a container of a [PodSpec]. It has all of a container's fields
// (v1.34), so that one that is not among them is seen.
type ContainerSpec struct {
	Name            string          `json:"name"`
	Image           string          `json:"image"`
	Command         []string        `json:"command"`
	Args            []string        `json:"args"`
	WorkingDir      string          `json:"workingDir"`
	Env             []envVar        `json:"env"`
	EnvFrom         []any           `json:"envFrom"`
	VolumeMounts    []volumeMount   `json:"volumeMounts"`
	Resources       requirements    `json:"resources"`
	RestartPolicy   string          `json:"restartPolicy"`
	SecurityContext securityContext `json:"securityContext"`

	Ports                    any `json:"ports"`
	ResizePolicy             any `json:"resizePolicy"`
	RestartPolicyRules       any `json:"restartPolicyRules"`
	VolumeDevices            any `json:"volumeDevices"`
	LivenessProbe            any `json:"livenessProbe"`
	ReadinessProbe           any `json:"readinessProbe"`
	StartupProbe             any `json:"startupProbe"`
	Lifecycle                any `json:"lifecycle"`
	TerminationMessagePath   any `json:"terminationMessagePath"`
	TerminationMessagePolicy any `json:"terminationMessagePolicy"`
	ImagePullPolicy          any `json:"imagePullPolicy"`
	Stdin                    any `json:"stdin"`
	StdinOnce                any `json:"stdinOnce"`
	TTY                      any `json:"tty"`
}

// isSidecar tells an init container that goes on running.
func (c ContainerSpec) isSidecar() bool { return c.RestartPolicy == "Always" }

// asked returns how many replicas of each resource c asks for.
func (c ContainerSpec) asked() map[string]int64 {
	counts := map[string]int64{}
	for _, name := range gpuResources(c.Resources.Limits) {
		counts[name], _ = c.Resources.Limits[name].replicas() // Checked when it was read.
	}
	return counts
}

type envVar struct {
	Name      string         `json:"name"`
	Value     string         `json:"value"`
	ValueFrom map[string]any `json:"valueFrom"`
}

type volume struct {
	Name     string `json:"name"`
	HostPath *struct {
		Path string `json:"path"`
	} `json:"hostPath"`
}

type volumeMount struct {
	Name              string `json:"name"`
	MountPath         string `json:"mountPath"`
	ReadOnly          bool   `json:"readOnly"`
	RecursiveReadOnly any    `json:"recursiveReadOnly"`
	SubPath           any    `json:"subPath"`
	SubPathExpr       any    `json:"subPathExpr"`
	MountPropagation  any    `json:"mountPropagation"`
}

type securityContext struct {
	WindowsOptions struct {
		// HostProcess is nil when it is not said.
		HostProcess *bool `json:"hostProcess"`
	} `json:"windowsOptions"`
}

type requirements struct {
	Limits   map[string]quantity `json:"limits"`
	Requests map[string]quantity `json:"requests"`
	Claims   any                 `json:"claims"`
}

// quantity is an amount of a resource as the manifest has it.
type quantity string

// UnmarshalJSON implements [json.Unmarshaler]: an amount is a text or a number.
func (q *quantity) UnmarshalJSON(data []byte) error {
	var text string
	if json.Unmarshal(data, &text) == nil {
		*q = quantity(strings.TrimSpace(text))
		return nil
	}
	var number json.Number
	if err := json.Unmarshal(data, &number); err != nil {
		return errors.New("an amount of a resource is neither a text nor a number")
	}
	*q = quantity(number)
	return nil
}

// maxRequest is more replicas than any node has.
const maxRequest = 1 << 20

// replicas returns q as a number of replicas; ok is false when it is none.
func (q quantity) replicas() (n int64, ok bool) {
	n, err := strconv.ParseInt(string(q), 10, 64)
	return n, err == nil && n >= 0 && n <= maxRequest
}

// gpuResources returns the resources of list, sorted: there are no others after
// [PodSpec.leaveOut].
func gpuResources(list map[string]quantity) []string { return slices.Sorted(maps.Keys(list)) }

// leaveOut removes the resources that are neither among ours nor in our domain, and
// notes which of them are extended ones. In our domain, those that do not exist stay.
func (s *PodSpec) leaveOut(ours []string) {
	domain, _, _ := strings.Cut(advertiser.ResourceDisplay, "/")
	extended := make(map[string]bool)
	other := func(name string, _ quantity) bool {
		if strings.HasPrefix(name, domain+"/") || slices.Contains(ours, name) {
			return false
		}
		if strings.Contains(name, "/") {
			extended[name] = true
		}
		return true
	}
	for _, c := range s.all() {
		maps.DeleteFunc(c.Resources.Limits, other)
		maps.DeleteFunc(c.Resources.Requests, other)
	}
	s.OthersResources = slices.Sorted(maps.Keys(extended))
}

// check returns why an API server would refuse a pod, as far as GPUs are
// concerned.
func (s PodSpec) check() error {
	if len(s.Containers) == 0 {
		return errors.New("its pod has no container")
	}
	var names []string
	for _, c := range s.all() {
		switch {
		case c.Name == "":
			return errors.New("a container has no name")
		case slices.Contains(names, c.Name):
			return fmt.Errorf("two containers are called %q", c.Name)
		}
		names = append(names, c.Name)
		if err := c.Resources.check(); err != nil {
			return fmt.Errorf("container %q: %w", c.Name, err)
		}
	}
	return nil
}

// check has extended resources be whole numbers, the same in limits and requests.
// https://kubernetes.io/docs/concepts/configuration/manage-resources-containers/#consuming-extended-resources
func (r requirements) check() error {
	for _, name := range gpuResources(r.Limits) {
		if _, ok := r.Limits[name].replicas(); !ok {
			return fmt.Errorf("resources.limits: %q of %s is no whole number from 0 to %d, in digits", r.Limits[name], name, maxRequest)
		}
	}
	for _, name := range gpuResources(r.Requests) {
		limit, ok := r.Limits[name]
		switch {
		case !ok:
			return fmt.Errorf("resources.requests has %s and resources.limits has not: set it in limits", name)
		case limit != r.Requests[name]:
			return fmt.Errorf("%s is %q in resources.limits and %q in resources.requests: they must be equal", name, limit, r.Requests[name])
		}
	}
	return nil
}
