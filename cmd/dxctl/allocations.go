package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"

	"directx-nri/advertiser"
	"directx-nri/cmd/dxctl/terminal"
	"directx-nri/discovery"
	"directx-nri/internal/allocation"
	"directx-nri/internal/cli"
	"directx-nri/internal/containerdconfig"
	"directx-nri/internal/paths"
)

type allocationsOptions struct {
	gpuSource
	stateDir     string
	podResources string
	criSocket    string
	namespace    string
	stale        bool
	output       string
	now          func() time.Time
}

func newAllocationsCommand() *cobra.Command {
	o := allocationsOptions{now: time.Now}
	command := &cobra.Command{
		Use:   "allocations",
		Short: "Tell which container holds which replica of which GPU",
		Long: `Tells of each replica of a GPU that was allocated which container holds it, and
since when. A replica's state is

  held     its pod is on this node
  stale    its pod is gone; the record ends when another pod is given the replica
  waiting  its container has not been created yet
  unknown  it cannot be told, and it is said why

Which pods there are, the kubelet and containerd are asked; one of them is enough.
The records are those of directx-advertiser, which root alone (on Windows:
administrators) can read. Nothing is changed.

Exit status: 0 when it could be told, no allocation at all included; 1 when records
could not be read.`,
		Example: `  dxctl allocations
  dxctl allocations -o wide
  dxctl allocations --stale
  dxctl allocations -n render-farm -o json`,
		RunE: func(c *cobra.Command, _ []string) error {
			return o.run(c.Context(), c.OutOrStdout(), c.ErrOrStderr())
		},
	}
	flags := command.Flags()
	o.addFlags(flags)
	const asConfigured = " (default: as in config.yaml)"
	flags.StringVar(&o.stateDir, "state-dir", "", "directx-advertiser's state `FOLDER`"+asConfigured)
	flags.StringVar(&o.podResources, "pod-resources-socket", "", "the kubelet's PodResources `SOCKET` or named pipe"+asConfigured)
	flags.StringVar(&o.criSocket, "cri-socket", "", "containerd's CRI `SOCKET` or named pipe"+asConfigured)
	flags.StringVarP(&o.namespace, "namespace", "n", "", "only what pods of this `NAMESPACE` hold")
	flags.BoolVar(&o.stale, "stale", false, "only what is stale")
	flags.StringVarP(&o.output, "output", "o", outputTable, "form of the output: "+choices(allocationsOutputs()))
	completeValues(command, "output", allocationsOutputs()...)
	return command
}

func allocationsOutputs() []string { return []string{outputTable, outputWide, outputJSON, outputYAML} }

// States of an allocation.
const (
	stateHeld    = "held"
	stateStale   = "stale"
	stateWaiting = "waiting"
	stateUnknown = "unknown"
)

// allocationReport is a replica of a GPU and who has it. The names of its fields
// are for scripts, and stay.
type allocationReport struct {
	// Allocation is the record's ID. A container that was given several replicas has
	// one record for all of one resource.
	Allocation string `json:"allocation" yaml:"allocation"`
	// Resource is directx.microsoft.com/display or compute.
	Resource string `json:"resource" yaml:"resource"`
	// Replica is the kubelet's ID of the replica.
	Replica string `json:"replica" yaml:"replica"`
	// InstanceID is the GPU's. Description and LocationPath are left out where the
	// node does not list it.
	InstanceID   string `json:"instanceID" yaml:"instanceID"`
	Description  string `json:"description,omitempty" yaml:"description,omitempty"`
	LocationPath string `json:"locationPath,omitempty" yaml:"locationPath,omitempty"`
	// State is held, stale, waiting or unknown, and Reason says why where it is not
	// plain.
	State  string `json:"state" yaml:"state"`
	Reason string `json:"reason,omitempty" yaml:"reason,omitempty"`
	// Namespace, Pod, PodUID and Container are the holder, left out while there is
	// none.
	Namespace string `json:"namespace,omitempty" yaml:"namespace,omitempty"`
	Pod       string `json:"pod,omitempty" yaml:"pod,omitempty"`
	PodUID    string `json:"podUID,omitempty" yaml:"podUID,omitempty"`
	Container string `json:"container,omitempty" yaml:"container,omitempty"`
	// AllocatedAt is when the kubelet gave the replica away, Since when the
	// container took it, null while it has not.
	AllocatedAt time.Time  `json:"allocatedAt" yaml:"allocatedAt"`
	Since       *time.Time `json:"since" yaml:"since"`
}

func (o *allocationsOptions) run(ctx context.Context, stdout, stderr io.Writer) error {
	if !slices.Contains(allocationsOutputs(), o.output) {
		return cli.Usage("--output %q is none of %s", o.output, choices(allocationsOutputs()))
	}
	if err := o.complete(stderr); err != nil {
		return err
	}
	folder := paths.Allocations(o.stateDir)
	entries, problems, err := allocation.OpenStore(folder).List(ctx)
	switch {
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w; run it as root, on Windows as an administrator", err)
	case err != nil:
		return err
	}
	reports := []allocationReport{}
	if len(entries) > 0 {
		reports = o.reports(ctx, stderr, entries)
	}
	if len(entries)+len(problems) == 0 {
		fmt.Fprintf(stderr, "nothing is allocated: there is no record in %s\n", folder)
	} else if len(reports) == 0 {
		fmt.Fprintln(stderr, "nothing that was asked for is allocated")
	}
	if err := o.print(stdout, reports); err != nil {
		return err
	}
	return tellProblems(stderr, problems)
}

// complete takes what no flag says from the configuration, which is not read when
// the flags say all.
func (o *allocationsOptions) complete(stderr io.Writer) error {
	if o.stateDir != "" && o.podResources != "" && o.criSocket != "" {
		return nil
	}
	c, err := o.settings(stderr)
	if err != nil {
		return err
	}
	o.stateDir = cmp.Or(o.stateDir, c.StateDir)
	o.podResources = cmp.Or(o.podResources, c.Kubelet.PodResources)
	o.criSocket = cmp.Or(o.criSocket, c.Containerd.CRISocket)
	return nil
}

// tellProblems tells of files that are of no use, and returns an error when one of
// them may be an allocation.
func tellProblems(stderr io.Writer, problems []allocation.Problem) error {
	lost := 0
	for _, p := range problems {
		fmt.Fprintf(stderr, "problem: %v\n", p.Err)
		if !errors.Is(p.Err, allocation.ErrForeign) && !errors.Is(p.Err, allocation.ErrOrphan) {
			lost++
		}
	}
	if lost > 0 {
		return fmt.Errorf("what %d file(s) among the allocation records say is not known; 'dxctl doctor' says what to do", lost)
	}
	return nil
}

// reports returns what is told of entries, those left out that were not asked
// for.
func (o *allocationsOptions) reports(ctx context.Context, stderr io.Writer, entries []allocation.Entry) []allocationReport {
	devices, err := o.devices(ctx)
	if err != nil {
		fmt.Fprintf(stderr, "GPUs are named by their instance IDs, for this node's are not known: %v\n", err)
	}
	pods := o.pods(ctx, stderr, entries)
	reports := []allocationReport{}
	for _, r := range reportAllocations(entries, devices, pods) {
		if (o.namespace == "" || r.Namespace == o.namespace) && (!o.stale || r.State == stateStale) {
			reports = append(reports, r)
		}
	}
	return reports
}

// knownPods is what the kubelet and containerd say of pods. What nobody says is
// nil.
type knownPods struct {
	// kubelet has the kubelet's, as "namespace/name".
	kubelet map[string]bool
	// runtime has containerd's, by UID.
	runtime map[string]containerdconfig.Pod
}

// pods asks for the pods, if entries need them. The kubelet does not tell UIDs, and
// containerd not which pods start again, so both are asked.
func (o *allocationsOptions) pods(ctx context.Context, stderr io.Writer, entries []allocation.Entry) knownPods {
	var known knownPods
	if !slices.ContainsFunc(entries, func(e allocation.Entry) bool { return e.Holder != nil }) {
		return known
	}
	containers, err := advertiser.PodResources{Socket: o.podResources}.Containers(ctx)
	if err == nil {
		known.kubelet = map[string]bool{}
	}
	for _, c := range containers {
		known.kubelet[c.Pod.String()] = true
	}
	runtime, runtimeErr := o.runtimePods(ctx)
	known.runtime = runtime
	switch {
	case err != nil && runtimeErr != nil:
		fmt.Fprintf(stderr, "which pods there are is not known: %v; %v; name their sockets with --pod-resources-socket and --cri-socket\n", err, runtimeErr)
	case err != nil:
		fmt.Fprintf(stderr, "containerd is asked for the pods, for the kubelet does not answer: %v\n", err)
	}
	return known
}

func (o *allocationsOptions) runtimePods(ctx context.Context) (map[string]containerdconfig.Pod, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	connection, err := containerdconfig.Dial(o.criSocket)
	if err != nil {
		return nil, err
	}
	defer connection.Close()
	return containerdconfig.Pods(ctx, connection)
}

func podName(h allocation.Holder) string { return h.PodNamespace + "/" + h.PodName }

// newest returns the UID of the newest pod of each name: the one that containerd
// runs, and else the one that holds the newest of entries, which are oldest first.
func (k knownPods) newest(entries []allocation.Entry) map[string]string {
	uids := map[string]string{}
	for _, e := range entries {
		if e.Holder != nil {
			uids[podName(*e.Holder)] = e.Holder.PodUID
		}
	}
	for uid, pod := range k.runtime {
		if pod.Ready {
			uids[pod.Namespace+"/"+pod.Name] = uid
		}
	}
	return uids
}

// state returns the state of e, and why where it is not plain.
func (k knownPods) state(e allocation.Entry, newest map[string]string) (state, reason string) {
	switch {
	case e.HolderUnknown:
		return stateUnknown, "who holds it cannot be read"
	case e.Holder == nil:
		return stateWaiting, ""
	}
	name, uid := podName(*e.Holder), e.Holder.PodUID
	named := e.Holder.PodName != ""
	sandbox, there := k.runtime[uid]
	switch {
	case sandbox.Ready:
		return stateHeld, ""
	case named && !e.Holder.NameOnly() && newest[name] != uid:
		return stateStale, "a newer pod has its pod's name"
	case named && k.kubelet[name]:
		return stateHeld, ""
	case named && k.kubelet != nil:
		return stateStale, "the kubelet does not have its pod"
	case there:
		return stateUnknown, "its pod's sandbox has ended, and the kubelet does not tell whether it starts again"
	case k.runtime != nil:
		return stateStale, "containerd does not have its pod"
	}
	return stateUnknown, "which pods there are is not known"
}

// reportAllocations returns a report for each replica of entries, ordered by GPU
// and replica, and for one replica by age.
func reportAllocations(entries []allocation.Entry, devices []discovery.Device, pods knownPods) []allocationReport {
	newest := pods.newest(entries)
	var reports []allocationReport
	for _, e := range entries {
		state, reason := pods.state(e, newest)
		r := allocationReport{Allocation: string(e.ID), Resource: e.Resource, State: state, Reason: reason, AllocatedAt: e.CreatedAt}
		if h := e.Holder; h != nil {
			r.Namespace, r.Pod, r.PodUID, r.Container = h.PodNamespace, h.PodName, h.PodUID, h.Container
			r.Since = &e.BoundAt
		}
		for _, replica := range e.Replicas {
			r.Replica, r.InstanceID = replica.ID, replica.InstanceID
			d, _ := discovery.Find(devices, replica.InstanceID)
			r.Description, r.LocationPath = d.Description, d.LocationPath
			reports = append(reports, r)
		}
	}
	order := deviceOrder(devices)
	slices.SortStableFunc(reports, func(a, b allocationReport) int {
		return cmp.Or(
			cmp.Compare(order(a.InstanceID), order(b.InstanceID)), strings.Compare(a.InstanceID, b.InstanceID),
			strings.Compare(a.Resource, b.Resource), compareReplicas(a.Replica, b.Replica),
		)
	})
	return reports
}

// deviceOrder returns the place of a GPU in the node's list. Those that are not in
// it come last.
func deviceOrder(devices []discovery.Device) func(instanceID string) int {
	return func(instanceID string) int {
		i := slices.IndexFunc(devices, func(d discovery.Device) bool { return strings.EqualFold(d.InstanceID, instanceID) })
		if i < 0 {
			return len(devices)
		}
		return i
	}
}

// replicaNumber returns the number at the end of a replica's ID.
func replicaNumber(id string) string {
	if _, number, ok := advertiser.ParseReplicaID(id); ok {
		return fmt.Sprint(number)
	}
	return id
}

func compareReplicas(a, b string) int {
	_, i, _ := advertiser.ParseReplicaID(a)
	_, j, _ := advertiser.ParseReplicaID(b)
	return cmp.Or(cmp.Compare(i, j), strings.Compare(a, b))
}

func (o *allocationsOptions) print(stdout io.Writer, reports []allocationReport) error {
	switch {
	case o.output == outputJSON || o.output == outputYAML:
		return printAs(stdout, o.output, reports)
	case len(reports) == 0:
		return nil
	}
	return o.table(reports).Print(stdout, terminal.Of(stdout, os.Getenv))
}

func (o *allocationsOptions) table(reports []allocationReport) *terminal.Table {
	table := &terminal.Table{Columns: []terminal.Column{
		{Title: "GPU", Give: 5, Least: 12}, {Title: "DESCRIPTION", Give: 1}, {Title: "REPLICA", Right: true}, {Title: "RESOURCE", Give: 3},
		{Title: "POD", Give: 6, Least: 12}, {Title: "CONTAINER", Give: 4, Least: 9}, {Title: "SINCE", Right: true, Give: 2}, {Title: "STATE"},
	}}
	if o.output == outputWide {
		table.Columns = append(table.Columns, terminal.Column{Title: "POD UID"}, terminal.Column{Title: "INSTANCE ID"}, terminal.Column{Title: "ALLOCATION"}, terminal.Column{Title: "WHY"})
	}
	for _, r := range reports {
		style := terminal.Plain
		switch r.State {
		case stateStale, stateUnknown:
			style = terminal.Warn
		case stateWaiting:
			style = terminal.Dim
		}
		pod, since := "", ""
		if r.Since != nil {
			pod, since = r.Namespace+"/"+r.Pod, duration.HumanDuration(o.now().Sub(*r.Since))
		}
		cells := []terminal.Cell{
			{Text: cmp.Or(r.LocationPath, r.InstanceID)}, {Text: r.Description}, {Text: replicaNumber(r.Replica)}, {Text: path.Base(r.Resource)},
			{Text: pod}, {Text: r.Container}, {Text: since}, {Text: r.State, Style: style},
		}
		if o.output == outputWide {
			cells = append(cells, terminal.Cell{Text: r.PodUID}, terminal.Cell{Text: r.InstanceID}, terminal.Cell{Text: r.Allocation}, terminal.Cell{Text: r.Reason})
		}
		table.Add(cells...)
	}
	return table
}
