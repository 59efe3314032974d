// Package simulate plays a node: it tells which GPUs the pods of a manifest
// would get, and what their containers' OCI specs would be, with no node,
// kubelet or containerd.
//
// The device plugin, the records and the decision are the node's own code. Only
// the scheduler, the kubelet and containerd are played, as far as GPUs are
// concerned.
package simulate

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sirupsen/logrus"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"directx-nri/advertiser"
	"directx-nri/advertiser/resources"
	"directx-nri/cmd/dxctl/terminal"
	"directx-nri/discovery"
	"directx-nri/internal/allocation"
	"directx-nri/internal/capabilities"
	"directx-nri/internal/config"
	"directx-nri/internal/hostfiles"
	"directx-nri/nri/decision"
	"directx-nri/nri/shim"
	"directx-nri/ocispec"
)

// Node is the node that is played.
type Node struct {
	// Source lists its GPUs.
	Source discovery.Source
	// Config is its configuration.
	Config config.Config
	// ByClass tells that Windows containers are given all GPUs by their class.
	ByClass bool
	// OS is the containers' operating system, "" for what each pod asks for, and
	// else what suits the GPUs.
	OS ocispec.OS
	// Files are the node's; nil takes each file that a GPU needs to be there.
	Files decision.Files
}

// Run has the node run workloads, in their order and all at once: count pods of
// each, or as many as its manifest asks for when count is 0.
func Run(ctx context.Context, node Node, workloads []Workload, count int) (report Report, err error) {
	folder, err := os.MkdirTemp("", "dxctl-simulate-")
	if err != nil {
		return Report{}, fmt.Errorf("make a folder for the allocation records: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	s, err := newSimulation(ctx, node, filepath.Join(folder, "allocations"))
	if err != nil {
		return Report{}, err
	}
	defer func() { err = errors.Join(err, s.recorder.Close()) }()
	pods, err := list(workloads, count)
	if err != nil {
		return Report{}, err
	}
	report = Report{
		Injection: string(node.Config.Injection), AssignmentMode: string(capabilities.Assignment{Individual: !node.ByClass}.Mode()),
		ReplicasPerGPU: sameReplicas(node.Config.Resources), Resources: s.offered, Notes: s.notes.lines, Pods: []Pod{},
	}
	for _, p := range pods {
		told, err := s.pod(ctx, p)
		if err = errors.Join(err, ctx.Err()); err != nil {
			return Report{}, fmt.Errorf("simulate pod %s/%s: %w", p.Namespace, p.Name, err)
		}
		report.Pods = append(report.Pods, told)
	}
	return report, nil
}

// sameReplicas returns how many containers may share a GPU, 0 where the rules
// differ.
func sameReplicas(rules []config.Resource) int {
	for _, r := range rules {
		if r.Replicas != rules[0].Replicas {
			return 0
		}
	}
	return rules[0].Replicas
}

// pod is a pod that is simulated.
type pod struct {
	Pod

	uid         string
	os          ocispec.OS
	annotations map[string]string
	spec        PodSpec
}

// container is a container with what the device plugin answered for it.
type container struct {
	id          string
	spec        ContainerSpec
	envs        map[string]string
	annotations map[string]string
}

// list returns the pods of workloads.
func list(workloads []Workload, count int) ([]pod, error) {
	var pods []pod
	for _, w := range workloads {
		n := w.Count
		if count > 0 {
			n = count
		}
		if len(pods)+n > maxPods {
			return nil, fmt.Errorf("%s %s: more than %d pods are not simulated; set --count", w.Kind, w.Name, maxPods)
		}
		for _, name := range w.names(n) {
			pods = append(pods, pod{
				Pod:         Pod{Namespace: w.Namespace, Name: name, Kind: w.Kind},
				uid:         fmt.Sprintf("00000000-0000-4000-8000-%012d", len(pods)+1),
				annotations: w.Annotations, spec: w.Spec,
			})
		}
	}
	return pods, nil
}

type simulation struct {
	node     Node
	records  string
	devices  []discovery.Device
	recorder *allocation.Recorder
	decider  decision.Decider
	kubelet  *kubelet
	notes    *notes
	// offered is what the kubelet is offered.
	offered []Resource
	// stand has, for the container that is made, texts that are random and the
	// words that stand for them; tokens is how many tokens there were.
	stand  []string
	tokens int
}

func newSimulation(ctx context.Context, node Node, records string) (*simulation, error) {
	byClass := func() bool { return node.ByClass }
	node.Source = discovery.ByClass(node.Source, byClass)
	s := &simulation{node: node, records: records, notes: &notes{}}
	var err error
	if s.devices, err = node.Source.Devices(ctx); err != nil {
		return nil, err
	}
	quiet := logrus.New()
	quiet.SetOutput(io.Discard)
	if s.recorder, err = allocation.OpenRecorder(ctx, records, quiet); err != nil {
		return nil, err
	}
	if err = s.connect(ctx, quiet); err != nil {
		return nil, errors.Join(err, s.recorder.Close())
	}
	return s, nil
}

// connect makes the node's programs, and has the kubelet hear what is offered.
func (s *simulation) connect(ctx context.Context, log *logrus.Logger) error {
	told := logrus.New()
	told.SetOutput(io.Discard)
	told.AddHook(s.notes)
	played := advertiser.Config{
		Source: s.node.Source, Recorder: s.recorder, Resources: s.node.Config.Resources, KubeletDir: s.records, Log: told,
		Ready: func(context.Context, advertiser.Start) error { return nil },
	}
	if s.injects() {
		played.Recorder, played.Inject = allocation.Injected{Recorder: s.recorder}, s.inject
	}
	plugin, err := advertiser.New(played)
	if err != nil {
		return err
	}
	services, err := plugin.Services(ctx)
	if err != nil {
		return err
	}
	files := s.node.Files
	if files == nil {
		files = hostfiles.Assumed{}
	}
	s.decider = decision.Decider{
		Source: s.node.Source, Store: allocation.OpenStore(s.records), Files: files, Log: log,
		Policy: decision.PolicyOf(s.node.Config, s.node.ByClass),
	}
	if s.kubelet, err = newKubelet(ctx, services); err != nil {
		return err
	}
	s.offered = s.resources()
	return nil
}

// resources returns what is offered, in the order of the rules.
func (s *simulation) resources() []Resource {
	var list []Resource
	for _, name := range resources.Names(s.node.Config.Resources) {
		r := Resource{Name: name, Allocatable: len(s.kubelet.healthy(name)), GPUs: []GPU{}}
		place := map[string]int{}
		for _, d := range s.kubelet.listed[name] {
			instanceID, _, _ := advertiser.ParseReplicaID(d.GetID())
			i, ok := place[instanceID]
			if !ok {
				i = len(r.GPUs)
				place[instanceID] = i
				r.GPUs = append(r.GPUs, s.gpu(instanceID, d.GetHealth() == v1beta1.Healthy))
			}
			r.GPUs[i].Replicas = append(r.GPUs[i].Replicas, d.GetID())
		}
		list = append(list, r)
	}
	return list
}

func (s *simulation) gpu(instanceID string, healthy bool) GPU {
	d, _ := discovery.Find(s.devices, instanceID)
	g := GPU{InstanceID: instanceID, Description: d.Description, LocationPath: d.LocationPath, Health: d.Health.String()}
	if !healthy && d.Health.OK() {
		g.Health = "unhealthy"
	}
	return g
}

// pod has the node run p.
func (s *simulation) pod(ctx context.Context, p pod) (Pod, error) {
	p.os = s.podOS(p.spec)
	p.OS = string(p.os)
	p.Notes = append(podNotes(p), s.unheard(p)...)
	if p.State, p.Reason = misplaced(p); p.State != "" {
		return p.Pod, nil
	}
	if p.Reason = s.kubelet.schedule(p.spec); p.Reason != "" {
		p.State = StatePending
		p.Notes = append(p.Notes, s.hopeless(p.spec)...)
		return p.Pod, nil
	}
	grants, err := s.kubelet.admit(ctx, p.spec)
	if err != nil {
		p.State = StateRejected
		p.Reason = fmt.Sprintf("UnexpectedAdmissionError: Allocate failed due to %v, which is unexpected", err)
		return p.Pod, nil
	}
	p.State = StateStarts
	blocked := ""
	for i, c := range p.spec.all() {
		isInit := i < len(p.spec.InitContainers)
		told, err := s.container(ctx, p, c, grants[c.Name], blocked)
		if err != nil {
			return Pod{}, fmt.Errorf("container %q: %w", c.Name, err)
		}
		told.Kind = kindOfContainer(c, isInit)
		if told.State == StateRefused {
			p.State = StateRefused
			if isInit {
				blocked = c.Name
			}
		}
		p.Containers = append(p.Containers, told)
	}
	return p.Pod, nil
}

func kindOfContainer(c ContainerSpec, isInit bool) string {
	switch {
	case !isInit:
		return "container"
	case c.isSidecar():
		return "sidecar"
	}
	return "init"
}

// osLabel is the label of a node that says its operating system.
const osLabel = "kubernetes.io/os"

// podOS returns the operating system of the node that a pod is put on: the one
// that was asked for, and else the one that suits the pod.
func (s *simulation) podOS(spec PodSpec) ocispec.OS {
	return cmp.Or(s.node.OS, ocispec.OS(spec.OS.Name), ocispec.OS(spec.NodeSelector[osLabel]), suits(s.devices))
}

// misplaced returns what becomes of a pod that is for another operating system
// than its node's, "" for one that is not.
func misplaced(p pod) (state, reason string) {
	selected := ocispec.OS(p.spec.NodeSelector[osLabel])
	switch {
	case selected != "" && selected != p.os, p.os != ocispec.Windows && p.os != ocispec.Linux:
		return StatePending, unschedulable("1 node(s) didn't match Pod's node affinity/selector")
	case p.spec.OS.Name != "" && ocispec.OS(p.spec.OS.Name) != p.os:
		return StateRejected, "PodOSNotSupported: Failed to admit pod as the OS field doesn't match node OS"
	}
	return "", ""
}

// suits returns the operating system whose containers can be given devices.
func suits(devices []discovery.Device) ocispec.OS {
	linux := slices.ContainsFunc(devices, func(d discovery.Device) bool { return len(d.DeviceNodes) > 0 })
	windows := slices.ContainsFunc(devices, func(d discovery.Device) bool { return d.LocationPath != "" })
	if linux && !windows {
		return ocispec.Linux
	}
	return ocispec.Windows
}

// podNotes returns what of p is not played.
func podNotes(p pod) []string {
	var list []string
	if name := p.spec.RuntimeClassName; name != "" {
		list = append(list, fmt.Sprintf("runtimeClassName %s is not looked at: where it isolates by Hyper-V, containers with a GPU are refused", name))
	}
	for _, name := range p.spec.OthersResources {
		list = append(list, fmt.Sprintf("%s is taken for somebody else's, as no rule of the configuration offers it: for one that does, name the configuration by --config", terminal.Printable(name)))
	}
	if len(p.spec.ResourceClaims) > 0 {
		list = append(list, "resourceClaims are not looked at")
	}
	return list
}

// hopeless tells of what the node does not have even when no other pod runs on it.
func (s *simulation) hopeless(spec PodSpec) []string {
	var list []string
	asked := podRequest(spec)
	for _, resource := range slices.Sorted(maps.Keys(asked)) {
		allocatable := len(s.kubelet.healthy(resource))
		switch _, offered := s.kubelet.plugins[resource]; {
		case !offered:
			list = append(list, fmt.Sprintf("there is no resource %s: ask for %s", resource, strings.Join(resources.Names(s.node.Config.Resources), " or ")))
		case asked[resource] > int64(allocatable):
			list = append(list, fmt.Sprintf("the pod asks for %d of %s, and all of the node is %d: it never runs there", asked[resource], resource, allocatable))
		}
	}
	return list
}

// container has containerd create c. blocked names an init container that does
// not start.
func (s *simulation) container(ctx context.Context, p pod, c ContainerSpec, grants []grant, blocked string) (Container, error) {
	told := Container{Name: c.Name, State: StateStarts}
	s.stand = nil // No container has another's token.
	made := container{id: p.Name + "-" + c.Name, spec: c, envs: map[string]string{}, annotations: map[string]string{}}
	for _, g := range grants {
		maps.Copy(made.envs, g.answer.GetEnvs())
		maps.Copy(made.annotations, g.answer.GetAnnotations())
		a, err := s.allocation(g)
		if err != nil {
			return Container{}, err
		}
		told.Allocations = append(told.Allocations, a)
	}
	if blocked != "" {
		told.State, told.Reason = StateWaits, fmt.Sprintf("init container %q does not start", blocked)
		return told, nil
	}
	spec := baseSpec(p, made)
	before, err := json.Marshal(spec)
	if err != nil {
		return Container{}, err
	}
	if len(c.EnvFrom) > 0 {
		told.Notes = append(told.Notes, "envFrom is not looked at: what it brings is in neither spec")
	}
	adjust := s.adjust
	if s.injects() {
		adjust = s.injected(p.os, grants)
	}
	after, notes, refusal, err := adjust(ctx, made.id, before)
	if err != nil {
		return Container{}, err
	}
	told.Notes = append(told.Notes, notes...)
	s.standFor(decision.Mark(p.os, spec.Process.Env), "MARK")
	told.Before = json.RawMessage(s.scrub(p.os, string(before)))
	if refusal != nil {
		told.State, told.Reason = StateRefused, s.scrub(p.os, refusal.Error())
		return told, nil
	}
	told.After = json.RawMessage(s.scrub(p.os, string(after)))
	return told, nil
}

// adjust returns the spec as the container with the given ID gets it, or the
// error with which its start is refused.
func (s *simulation) adjust(ctx context.Context, id string, before []byte) (after []byte, notes []string, refusal, err error) {
	spec, err := ocispec.ParseSpec(before)
	if err != nil {
		return nil, nil, nil, err
	}
	facts, err := spec.Facts()
	if err != nil {
		return nil, nil, nil, err
	}
	c, ok := shim.Describe(facts, id)
	if !ok {
		return before, []string{"it is a process of the host, which sees all GPUs and is given nothing"}, nil, nil
	}
	outcome, ok, refusal := s.decider.Preview(ctx, c)
	if refusal == nil && ok {
		outcome.Edits, ok, refusal = s.decider.Decide(ctx, c)
	}
	if refusal != nil || !ok {
		return before, nil, refusal, nil
	}
	for _, note := range outcome.Notes {
		if !note.Minor {
			notes = append(notes, note.String())
		}
	}
	after, _, err = spec.Apply(outcome.Edits)
	return after, notes, nil, err
}

// allocation returns what was recorded for a grant.
func (s *simulation) allocation(g grant) (Allocation, error) {
	if s.injects() {
		return Allocation{Resource: g.resource, Replicas: s.replicas(g.ids)}, nil
	}
	variable := allocation.EnvKey(g.resource)
	token, err := allocation.ParseToken(g.answer.GetEnvs()[variable])
	if err != nil {
		return Allocation{}, err
	}
	record, err := s.decider.Store.Get(token)
	if err != nil {
		return Allocation{}, err
	}
	s.tokens++
	a := Allocation{
		Resource: g.resource, Variable: variable,
		Token:  s.standFor(string(token), "TOKEN"),
		Record: s.standFor(string(record.ID), "RECORD"),
	}
	var ids []string
	for _, r := range record.Replicas {
		ids = append(ids, r.ID)
	}
	a.Replicas = s.replicas(ids)
	return a, nil
}

// replicas describes the replicas with the given IDs.
func (s *simulation) replicas(ids []string) []Replica {
	var list []Replica
	for _, id := range ids {
		instanceID, _, _ := advertiser.ParseReplicaID(id)
		d, _ := discovery.Find(s.devices, instanceID)
		list = append(list, Replica{ID: id, InstanceID: instanceID, Description: d.Description, LocationPath: d.LocationPath})
	}
	return list
}

// standFor has a word stand for a text that differs from one run to the next, and
// returns the word.
func (s *simulation) standFor(text, kind string) string {
	word := fmt.Sprintf("%s-%d", kind, s.tokens)
	if text != "" {
		s.stand = append(s.stand, text, word)
	}
	return word
}

// Where a node has its records; internal/paths tells it of the system that we
// run on, which need not be the node's.
const (
	windowsRecords = `C:\ProgramData\directx-nri\allocations\`
	linuxRecords   = "/var/lib/directx-nri/allocations/"
)

// scrub replaces in text what is of this run alone.
func (s *simulation) scrub(os ocispec.OS, text string) string {
	records := linuxRecords
	if os == ocispec.Windows {
		records = windowsRecords
	}
	own := s.records + string(filepath.Separator)
	return strings.NewReplacer(append(slices.Clone(s.stand), own, records)...).Replace(text)
}
