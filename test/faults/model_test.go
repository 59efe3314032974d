//go:build e2e && linux

package faults

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/durable"
	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/test/bed"
)

const (
	nriTimeout = 2 * time.Second // containerd waits as long for an NRI plugin, once
	creation   = 1 * time.Second // without a plugin
	starved    = 4 * time.Second // more if processes always wait for a processor
	// descriptorSlack is for connections that are just made or closed.
	descriptorSlack = 3
	settleTimeout   = 60 * time.Second // from the last fault to the start of all pods
)

// model is what is known about the node independently of the product's programs.
type model struct {
	records map[string][]string // the replicas that each record is for, by its ID
	live    map[string]bool     // the records that there are, by their IDs
	holders map[string]string   // the pods of the records that there are, by the record's ID
	torn    map[string]bool     // the records that were torn: the advertiser may not end them
	bound   map[string]binding  // the records that were ever bound
	// allocations are the allocations of containers by resource, by the runtime's ID.
	allocations   map[string]map[string]string
	reports       int64    // how much of the containers' reports was read
	events        bed.Mark // how much of the kubelet's log was read
	allocatedRead bed.Mark // how much of the advertiser's log was read
	calls         calls
	started       map[string]bool // the containers that have started once
	settled       bool            // the kubelet has read its checkpoint, and nothing fails
	mounts        int             // before the first pod
	// pressure are the times in which a process waited for a processor, at the end of each step.
	pressure []pressure
	// descriptors are the open files of the daemons before the first pod.
	descriptors map[string]int
}

// container is a running container of a pod.
type container struct {
	pod, name string
	spec      bed.Container
	view      bed.View
	// allocations are the IDs of its records by resource, nil if containerd does not say.
	allocations map[string]string
}

// binding is the container of a record.
type binding struct{ container, resource string }

func (r *round) begin() {
	r.records, r.holders = map[string][]string{}, map[string]string{}
	r.calls = calls{begun: map[string]time.Time{}, pods: map[string]string{}}
	r.live, r.started = map[string]bool{}, map[string]bool{}
	r.torn, r.bound, r.allocations = map[string]bool{}, map[string]binding{}, map[string]map[string]string{}
	r.mounts, r.descriptors = r.countMounts(), r.countDescriptors()
}

// record is the part of a file in the directory of the records that the model needs.
type record struct {
	ID, Resource string
	Replicas     []struct{ ID, InstanceID string }
	Holder       struct{ PodUID, PodName, Container string }
}

var allocatedPattern = regexp.MustCompile(`msg=Allocated allocation=(\w+) replicas=(".*") resource=(\S+)\n`)

// refresh reads the records and their bindings.
func (r *round) refresh() {
	r.readAllocated()
	files, err := os.ReadDir(paths.Allocations(r.StateDir))
	if err != nil {
		return // Another step may have made the directory unreadable.
	}
	clear(r.holders)
	clear(r.live)
	resources := map[string]string{}
	for _, file := range files {
		id, suffix, _ := strings.Cut(file.Name(), ".")
		data, err := os.ReadFile(filepath.Join(paths.Allocations(r.StateDir), file.Name()))
		if id == "" || err != nil {
			continue // It is temporary, or has just been removed.
		}
		var e record
		if err := json.Unmarshal(data, &e); err != nil || e.ID != id {
			if !r.torn[id] {
				r.t.Errorf("%s: ID %q, %v", file.Name(), e.ID, err)
			}
			continue
		}
		if suffix == "bound" {
			r.holders[id] = strings.TrimSuffix(e.Holder.PodName, "-"+bed.Name)
			r.bound[id] = binding{r.holders[id] + "/" + e.Holder.Container, r.bound[id].resource}
			continue
		}
		r.live[id] = true
		r.bound[id] = binding{r.bound[id].container, e.Resource}
		var ids []string
		for _, replica := range e.Replicas {
			ids = append(ids, replica.ID)
			if other := resources[replica.ID]; other != "" && other != e.Resource && len(r.torn) == 0 {
				r.t.Errorf("there are records of replica %s as %s and as %s", replica.ID, other, e.Resource)
			}
			resources[replica.ID] = e.Resource
		}
		if known := r.records[id]; len(known) > 0 && !slices.Equal(known, ids) {
			r.t.Errorf("record %s was for %v, and is for %v", id, known, ids)
		}
		r.records[id] = ids
	}
}

// readAllocated notes the records that the advertiser says it made. One may come and go between two looks at its
// directory: a static pod's device is free, and allocated again, as soon as its manifest is gone.
func (r *round) readAllocated() {
	log := r.Advertiser.Log(r.allocatedRead)
	log = log[:strings.LastIndexByte(log, '\n')+1]
	r.allocatedRead += bed.Mark(len(log))
	for _, fields := range allocatedPattern.FindAllStringSubmatch(log, -1) {
		id, resource := fields[1], fields[3]
		replicas, err := strconv.Unquote(fields[2])
		r.must(err)
		r.records[id] = strings.Fields(strings.Trim(replicas, "[]"))
		r.bound[id] = binding{r.bound[id].container, resource}
	}
}

// check compares the model with the running containers.
func (r *round) check() {
	r.notePressure()
	r.refresh()
	before, reports, running := maps.Clone(r.live), r.readReports(), r.running()
	r.refresh() // Containers may have started meanwhile, or have ended.
	maps.Copy(r.live, before)
	r.checkReports(reports)
	r.checkEvents()
	r.checkCalls()
	r.CheckMissingGPUs(r.t)
	holders := map[string]string{}
	for _, c := range running {
		if c.allocations == nil {
			continue
		}
		replicas, err := r.promised(c.pod, c.spec, c.allocations)
		if err != nil {
			r.t.Errorf("container %s of pod %s runs: %v", c.name, c.pod, err)
			continue
		}
		if err := r.compare(c.view, gpusOf(replicas)...); err != nil {
			r.t.Errorf("container %s of pod %s, promised %v: %v", c.name, c.pod, replicas, err)
		}
		if r.early(c.pod) {
			continue
		}
		for _, id := range c.allocations {
			if !r.live[id] && !r.torn[id] {
				r.t.Errorf("container %s of pod %s runs, and its record %s has ended", c.name, c.pod, id)
			}
		}
		for _, id := range replicas {
			if other := holders[id]; other != "" && other != c.pod+"/"+c.name {
				r.t.Errorf("containers %s and %s/%s run with replica %s", other, c.pod, c.name, id)
			}
			holders[id] = c.pod + "/" + c.name
		}
	}
	if r.works(r.Kubelet) {
		r.checkKubelet(running)
	}
}

// checkKubelet compares what the kubelet allocated with the records.
func (r *round) checkKubelet(running []container) {
	held, err := r.Holdings()
	if err != nil {
		if r.settled {
			r.t.Errorf("the kubelet does not list what it allocated: %v", err)
		}
		return // It has just been started.
	}
	for _, c := range running {
		if c.allocations == nil && r.settled {
			r.t.Errorf("containerd does not say what container %s of pod %s has", c.name, c.pod)
		}
		var ids []string
		for _, h := range held {
			if h.Pod == c.pod && h.Container == c.name {
				ids = append(ids, h.Replica)
			}
		}
		replicas, err := r.promised(c.pod, c.spec, c.allocations)
		if c.allocations == nil || err != nil || len(ids) == 0 && !r.settled || r.early(c.pod) {
			continue // Reported already; or the kubelet has not read its checkpoint yet.
		}
		slices.Sort(ids)
		slices.Sort(replicas)
		if !slices.Equal(ids, replicas) {
			r.t.Errorf("container %s of pod %s: the kubelet allocated %v, its records are for %v", c.name, c.pod, ids, replicas)
		}
	}
}

// requested returns how many replicas of each resource a container requests.
func requested(spec bed.Container) map[string]int {
	return map[string]int{bed.Display: spec.Display, bed.Compute: spec.Compute}
}

// promised returns the replicas of a container's allocations, and an error if they are not
// what its pod requests.
//
// The kubelet may create a container of a pod that it no longer has without the answers of
// device plugins for some of its resources: GetDeviceRunContainerOptions in
// pkg/kubelet/cm/devicemanager (v1.34) does so if the pod is deleted during its calls.
func (r *round) promised(podName string, spec bed.Container, allocations map[string]string) (replicas []string, err error) {
	for resource, count := range requested(spec) {
		id := allocations[resource]
		if id == "" && count > 0 && r.early(podName) {
			continue
		}
		if (id != "") != (count > 0) {
			return nil, fmt.Errorf("it requests %d of %s, and its allocation is %q", count, resource, id)
		}
		if ids := r.records[id]; len(ids) != count {
			return nil, fmt.Errorf("it requests %d of %s, and its record is for %v", count, resource, ids)
		}
		replicas = append(replicas, r.records[id]...)
	}
	return replicas, nil
}

// allocated returns the allocations of a process's container by resource, nil if containerd does not say.
func (r *round) allocated(proc string) map[string]string {
	groups, _ := os.ReadFile(proc + "/cgroup") // It may have ended.
	id := containerID.FindString(string(groups))
	if r.allocations[id] == nil && id != "" && r.works(r.Containerd) {
		response, err := r.CRI.ContainerStatus(r.t.Context(), &cri.ContainerStatusRequest{ContainerId: id})
		if err != nil {
			return nil // It has just been started, or the container has ended.
		}
		r.allocations[id] = map[string]string{}
		for _, resource := range []string{bed.Display, bed.Compute} {
			if value := response.GetStatus().GetAnnotations()[allocation.AnnotationKey(resource)]; value != "" {
				r.allocations[id][resource] = value
			}
		}
	}
	return r.allocations[id]
}

// containerID is that of containerd, which ends the paths of control groups.
var containerID = regexp.MustCompile(`[0-9a-f]{64}`)

// early reports whether the kubelet may free a pod's devices before its containers end.
// It does so for pods that it no longer has (GetActivePods in pkg/kubelet, v1.34): static
// pods without their manifest, and pods that were deleted by force.
func (r *round) early(pod string) bool {
	p := r.gone[pod]
	return p != nil && (r.API == nil || p.forced)
}

func gpusOf(replicas []string) (gpus []int) {
	for _, id := range replicas {
		gpus = append(gpus, bed.GPUOfReplica(id))
	}
	slices.Sort(gpus)
	return slices.Compact(gpus)
}

// lookup returns a pod, deleted or not.
func (r *round) lookup(name string) *pod { return cmp.Or(r.pods[name], r.gone[name]) }

// requestsGPU reports whether one of a pod's containers requests a GPU.
func (p *pod) requestsGPU() bool {
	return slices.ContainsFunc(slices.Concat(p.Init, p.Containers), func(c bed.Container) bool { return c.Display+c.Compute > 0 })
}

// spec returns what a pod's container is.
func (p *pod) spec(name string) (bed.Container, bool) {
	for _, c := range slices.Concat(p.Init, p.Containers) {
		if c.Name == name {
			return c, true
		}
	}
	return bed.Container{}, false
}

// compare is [bed.Node.Compare], and compares the GPUs that DIRECTX_DEVICES names.
func (r *round) compare(view bed.View, gpus ...int) error {
	var hints []struct{ LocationPath string }
	if view.Hints != "" {
		if err := json.Unmarshal([]byte(view.Hints), &hints); err != nil {
			return err
		}
	}
	var named []int
	for _, hint := range hints {
		named = append(named, slices.IndexFunc(r.full.GPUs, func(g bed.GPU) bool { return g.LocationPath() == hint.LocationPath }))
	}
	slices.Sort(named)
	if !slices.Equal(named, slices.Sorted(slices.Values(gpus))) {
		return fmt.Errorf("DIRECTX_DEVICES names the GPUs %v, and it was promised %v", named, gpus)
	}
	return r.Compare(view, gpus...)
}

// running returns the containers of pods that run, whether containerd knows them or not:
// the shells whose last argument names the container.
func (r *round) running() (all []container) {
	directories, err := filepath.Glob("/proc/[0-9]*")
	r.must(err)
	for _, dir := range directories {
		line, _ := os.ReadFile(dir + "/cmdline") // It may have ended.
		args := strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00")
		podName, name, found := strings.Cut(args[len(args)-1], "/")
		if len(args) != 4 || args[0] != "/bin/sh" || args[1] != "-c" || !found {
			continue
		}
		p := r.lookup(podName)
		if p == nil {
			r.t.Errorf("a container of an unknown pod %s runs", podName)
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(dir))
		r.must(err)
		view, err := bed.ViewProcess(podName+"/"+name, pid)
		if err != nil {
			if now, _ := os.ReadFile(dir + "/cmdline"); string(now) == string(line) {
				r.t.Errorf("cannot look into container %s of pod %s: %v", name, podName, err)
			}
			continue // It has ended.
		}
		spec, _ := p.spec(name)
		all = append(all, container{podName, name, spec, view, r.allocated(dir)})
	}
	slices.SortFunc(all, func(a, b container) int { return strings.Compare(a.pod+"/"+a.name, b.pod+"/"+b.name) })
	return all
}

// readReports reads what containers wrote as the first thing that they did, since the
// last time.
func (r *round) readReports() string {
	data, err := os.ReadFile(filepath.Join(r.Dir, "reports", "all"))
	if err != nil {
		return "" // No container has started yet.
	}
	begin, end := r.reports, int64(strings.LastIndexByte(string(data), '\n')+1)
	r.reports = end
	return string(data[begin:end])
}

// checkReports checks what containers had when they started.
func (r *round) checkReports(reports string) {
	for line := range strings.Lines(reports) {
		fields := strings.Fields(line)
		podName, name, _ := strings.Cut(fields[0], "/")
		p := r.lookup(podName)
		if p == nil || len(fields) < 2 {
			r.t.Errorf("unknown report %q", line)
			continue
		}
		spec, _ := p.spec(name)
		var gpus []int
		for _, node := range fields[1:] {
			if i, err := strconv.Atoi(strings.TrimPrefix(node, "/dev/dxg")); err == nil {
				gpus = append(gpus, i)
			}
		}
		slices.Sort(gpus)
		r.started[fields[0]] = true
		if len(gpus) > 0 {
			r.withGPU++
		}
		if want := r.mayHave(fields[0], spec); !slices.ContainsFunc(want, func(want []int) bool { return slices.Equal(want, gpus) }) {
			r.t.Errorf("container %s started with GPUs %v, and its records are for %v", fields[0], gpus, want)
		}
	}
}

// mayHave returns the GPUs that a container may have, by the records that were bound to it: of each resource that
// it requests those of one record, or none if the kubelet may have created it without.
func (r *round) mayHave(container string, spec bed.Container) [][]int {
	podName, _, _ := strings.Cut(container, "/")
	all := [][]string{nil}
	for resource, count := range requested(spec) {
		if count == 0 {
			continue
		}
		var more [][]string
		for _, replicas := range all {
			if r.early(podName) {
				more = append(more, replicas)
			}
			for id, b := range r.bound {
				// No look saw the binding of a record that came and went between two looks.
				unseen := b == binding{"", resource} && r.early(podName)
				if (unseen || b == binding{container, resource}) && len(r.records[id]) == count {
					more = append(more, slices.Concat(replicas, r.records[id]))
				}
			}
		}
		all = more
	}
	var gpus [][]int
	for _, replicas := range all {
		gpus = append(gpus, gpusOf(replicas))
	}
	return gpus
}

// checkEvents checks that the kubelet admitted the pods, unless it could not know what to
// allocate.
func (r *round) checkEvents() {
	log := r.Kubelet.Log(r.events)
	end := r.events + bed.Mark(strings.LastIndexByte(log, '\n')+1)
	all := maps.Clone(r.pods)
	maps.Copy(all, r.gone)
	for name, p := range all {
		for _, e := range r.EventsSince(name, r.events) {
			if !notAdmitted(e) {
				continue
			}
			r.refused++
			p.refused = true
			if !p.requestsGPU() || e.At.Sub(r.lastRefusal) > admission {
				r.t.Errorf("the kubelet refused pod %s without a fault: %s", name, e.Message)
			}
		}
	}
	r.events = end
}

// calls are containerd's calls of pods and containers, from its log.
type calls struct {
	read  bed.Mark             // how much of the log was read
	begun map[string]time.Time // when the calls began that have not ended
	// pods are the pods of sandboxes, and the pods and names of containers, by ID.
	pods map[string]string
}

var (
	callPattern = regexp.MustCompile(`^time=(\S+) level=\w+ msg="((?:RunPodSandbox|CreateContainer|StartContainer) .*)"(?: error=.*)?\n`)
	endPattern  = regexp.MustCompile(`^(.*?) (returns(?: \w+ id "(\w+)"| successfully)|failed.*)$`)
	idPattern   = regexp.MustCompile(`"(\w+)"`)
	namePattern = regexp.MustCompile(`(?:\{Name:|name:")([^",]*)`) // 1.7, 2.x
)

// checkCalls checks that containers that were promised no GPU were neither refused nor
// delayed by the product. NRI runs one hook at a time, also for pods and for the start of
// containers.
func (r *round) checkCalls() {
	log := r.Containerd.Log(r.calls.read)
	log = log[:strings.LastIndexByte(log, '\n')+1]
	r.calls.read += bed.Mark(len(log))
	for line := range strings.Lines(log) {
		fields := callPattern.FindStringSubmatch(line)
		if fields == nil {
			continue
		}
		at, err := time.Parse(time.RFC3339Nano, strings.Trim(fields[1], `"`))
		r.must(err)
		call := strings.ReplaceAll(strings.ReplaceAll(fields[2], `\"`, `"`), "for container ", "for ")
		end := endPattern.FindStringSubmatch(call)
		if end == nil {
			r.calls.begun[call] = at
			continue
		}
		owner, plain := r.owner(end[1])
		if end[3] != "" {
			r.calls.pods[end[3]] = owner
		}
		began, found := r.calls.begun[end[1]]
		delete(r.calls.begun, end[1])
		if found && plain {
			r.checkCall(owner, line, began, at)
		}
	}
}

// owner returns the pod, or the pod and the container, that a call is for, and whether it
// was promised no GPU.
func (r *round) owner(call string) (owner string, plain bool) {
	if id := idPattern.FindStringSubmatch(call); id != nil {
		owner = r.calls.pods[id[1]]
	}
	if name := namePattern.FindStringSubmatch(call); name != nil {
		owner = strings.TrimPrefix(owner+"/"+strings.TrimSuffix(name[1], "-"+bed.Name), "/")
	}
	podName, name, isContainer := strings.Cut(owner, "/")
	p := r.lookup(podName)
	if p == nil || p.thief {
		return owner, false
	}
	spec, _ := p.spec(name)
	return owner, isContainer && spec.Display+spec.Compute == 0 || !isContainer && !p.requestsGPU()
}

// checkCall checks a call for a pod or container without a GPU. line is the end of it in
// containerd's log.
func (r *round) checkCall(owner, line string, began, ended time.Time) {
	disturbed := slices.ContainsFunc(r.disturbances, func(at time.Time) bool {
		return at.After(began.Add(-time.Second)) && at.Before(ended.Add(time.Second))
	})
	if strings.Contains(line, "directx-nri:") || !disturbed && strings.Contains(line, "deadline exceeded") {
		r.t.Errorf("%s, which was promised no GPU, was refused: %s", owner, line)
	}
	if !disturbed {
		r.judged++
		r.checkTook(line, began, ended)
	}
}

// pressure is a line of /proc/pressure/cpu.
type pressure struct {
	at     time.Time
	waited time.Duration
}

func (r *round) notePressure() {
	var some string
	var averages [3]float64
	var microseconds int64
	data, err := os.ReadFile("/proc/pressure/cpu")
	if err != nil {
		return // Not every kernel has it.
	}
	if _, err := fmt.Sscanf(string(data), "%s avg10=%f avg60=%f avg300=%f total=%d", &some, &averages[0], &averages[1], &averages[2], &microseconds); err != nil {
		return
	}
	r.pressure = append(r.pressure, pressure{time.Now(), time.Duration(microseconds) * time.Microsecond})
}

// waited returns for how long a process waited for a processor in the steps from one moment to now.
func (r *round) waited(began time.Time) time.Duration {
	after := slices.IndexFunc(r.pressure, func(p pressure) bool { return !p.at.Before(began) })
	if after < 0 {
		return 0 // Not every kernel measures it.
	}
	return r.pressure[len(r.pressure)-1].waited - r.pressure[max(0, after-1)].waited
}

// checkTook checks how long the creation of something without a GPU took.
func (r *round) checkTook(what string, began, ended time.Time) {
	took := ended.Sub(began)
	waited := min(took, r.waited(began))
	limit := nriTimeout + creation + min(waited, time.Duration(float64(starved)*waited.Seconds()/took.Seconds()))
	if took > limit {
		r.t.Errorf("this took %v, want %v at most without a GPU: %s", took, limit, what)
	}
}

// settle ends all faults. Then every pod that can run must run within 60 s, on Windows 180, and when all
// are deleted nothing must be left, not their records either.
func (r *round) settle() {
	start, limit := time.Now(), settleTimeout
	if r.WindowsKubelet {
		limit = 3 * settleTimeout // The kubelet tries again after 10 to 15 s what begins with others at once.
	}
	r.restore()
	r.WriteConfig(r.t, config(replicas))
	r.disturbances = append(r.disturbances, start)
	clear(r.frozen)
	r.Recover(r.t, r.full)
	r.lastRefusal = time.Now() // Until now.
	fresh := pod{Pod: bed.GPUPod("", 1)}
	name := r.apply("fresh", fresh)
	r.apply("fresh-plain", pod{Pod: bed.GPUPod("", 0)})
	r.SyncPods(r.t, slices.Collect(maps.Keys(r.pods))...)
	bed.Eventually(r.t, limit-time.Since(start), "a new pod with a GPU runs after all faults", func() error {
		r.checkEvents()
		if r.pods[name].refused {
			name = r.apply("fresh", fresh) // As a controller does.
		}
		return r.runs(name)
	})
	names := slices.Collect(maps.Keys(r.pods))
	for _, name := range names {
		bed.Eventually(r.t, limit-time.Since(start), "pod "+name+" runs after all faults", func() error {
			r.checkEvents()
			if r.pods[name].refused {
				return nil
			}
			return r.runs(name)
		})
	}
	r.t.Logf("all pods ran %v after the last fault", time.Since(start).Round(time.Millisecond))
	mark := r.Kubelet.Mark()
	name = r.apply("again", r.thief())
	r.WaitNotStarted(r.t, name, "main", mark)
	r.drop(name)
	r.settled = true
	r.check()
	r.checkComplete()
	r.settled = false
	time.Sleep(12 * time.Second) // The advertiser lists pods every 10 s.
	listed := map[string]bool{}  // by this kubelet for the advertiser
	for _, name := range names {
		listed[name] = !r.pods[name].refused
		r.drop(name)
	}
	for name := range r.gone {
		r.Remove(r.t, name)
	}
	bed.Eventually(r.t, settleTimeout, "the records of the last pods end", func() error {
		r.refresh()
		for id, pod := range r.holders {
			if listed[pod] && !r.torn[id] {
				return fmt.Errorf("record %s of pod %s is left", id, pod)
			}
		}
		return nil
	})
	r.checkLeaks()
}

// runs returns nil if a pod's containers run, or if they need not.
func (r *round) runs(name string) error {
	p := r.pods[name]
	status, err := r.Status(name)
	switch {
	case err != nil:
		return err
	case status.Status.Phase == "Failed", status.Status.Phase == "Succeeded": // Its containers never end by themselves.
		return fmt.Errorf("it has ended: %v", status)
	case p.loops && !r.started[name+"/main"]:
		reports := r.readReports()
		r.refresh()
		r.checkReports(reports)
		return errors.New("it has never started")
	case p.loops, p.thief:
		return nil
	}
	for _, c := range status.Status.ContainerStatuses {
		if c.State.Running == nil {
			return fmt.Errorf("%v", status)
		}
	}
	if len(status.Status.ContainerStatuses) == 0 {
		return errors.New("no container yet")
	}
	return nil
}

// checkComplete checks that the containers of all pods run that can run.
func (r *round) checkComplete() {
	runs := map[string]bool{}
	for _, c := range r.running() {
		runs[c.pod+"/"+c.name] = true
	}
	for name, p := range r.pods {
		for _, c := range p.Containers {
			if !p.refused && !p.loops && !p.thief && !runs[name+"/"+c.Name] {
				r.t.Errorf("the kubelet says that container %s of pod %s runs, and there is no process", c.Name, name)
			}
		}
	}
}

// notAdmitted reports whether the kubelet refused a pod, also one that ran when the kubelet
// was started again: with a container that had been restarted, it may take the one that has
// ended for the present one (isContainerAlreadyRunning in pkg/kubelet/cm/devicemanager,
// v1.34).
func notAdmitted(e bed.Event) bool {
	return e.Reason == "UnexpectedAdmissionError" || strings.HasPrefix(e.Reason, "OutOf")
}

// checkLeaks checks that nothing is left of the pods.
func (r *round) checkLeaks() {
	bed.Eventually(r.t, settleTimeout, "the daemons have no more open files than before the first pod", func() error {
		for name, count := range r.countDescriptors() {
			if count > r.descriptors[name]+descriptorSlack {
				return fmt.Errorf("%s has %d open files, and had %d", name, count, r.descriptors[name])
			}
		}
		return nil
	})
	// The next start removes temporary files of writers that were killed, when they are old.
	temps, err := filepath.Glob(filepath.Join(paths.Allocations(r.StateDir), ".directx-nri-tmp-*"))
	r.must(err)
	hourAgo := time.Now().Add(-time.Hour)
	for _, temp := range temps {
		r.must(os.Chtimes(temp, hourAgo, hourAgo))
	}
	r.RestartDaemons(r.t)
	r.checkSuperseded()
	r.changed = time.Time{} // From here on a standalone container must start.
	r.t.Log(r.runStandalone())
	bed.Eventually(r.t, settleTimeout, "nothing is left of the pods", func() error {
		if running := r.running(); len(running) > 0 {
			return fmt.Errorf("%d containers run, such as %s of pod %s", len(running), running[0].name, running[0].pod)
		}
		if mounts := r.countMounts(); mounts > r.mounts {
			return fmt.Errorf("there are %d mounts below %s, and were %d", mounts, r.Dir, r.mounts)
		}
		entries, err := os.ReadDir(paths.Allocations(r.StateDir))
		if err != nil {
			return err
		}
		for _, e := range entries {
			if durable.IsTemp(e.Name()) {
				return fmt.Errorf("temporary file %s", e.Name())
			}
		}
		return nil
	})
}

// checkSuperseded checks that no replica has the records of two pods: the advertiser ends
// those of pods that no longer exist at the latest when it starts.
func (r *round) checkSuperseded() {
	files, err := filepath.Glob(filepath.Join(paths.Allocations(r.StateDir), "*.bound"))
	r.must(err)
	pods := map[string]string{} // by the replica
	for _, file := range files {
		var e record
		id := strings.TrimSuffix(filepath.Base(file), ".bound")
		if r.torn[id] || json.Unmarshal(bed.ReadFile(r.t, file), &e) != nil {
			continue
		}
		for _, replica := range r.records[id] {
			if other := pods[replica]; other != "" && other != e.Holder.PodUID {
				r.t.Errorf("replica %s has records of the pods %s and %s", replica, other, e.Holder.PodUID)
			}
			pods[replica] = e.Holder.PodUID
		}
	}
}

// countMounts counts the mounts below the node's directory. containerd leaves those of
// sandboxes whose creation is canceled because the kubelet ends.
func (r *round) countMounts() (count int) {
	file, err := os.Open("/proc/self/mountinfo")
	r.must(err)
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if fields := strings.Fields(lines.Text()); len(fields) > 4 && strings.HasPrefix(fields[4], r.Dir) && !strings.Contains(fields[4], "/io.containerd.runtime.v2.task/k8s.io/") {
			count++
		}
	}
	return count
}

// countDescriptors counts the open files of the product's daemons.
func (r *round) countDescriptors() map[string]int {
	counts := map[string]int{}
	for _, p := range r.Daemons() {
		entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.PID()))
		r.must(err)
		counts[p.Name] = len(entries)
	}
	return counts
}
