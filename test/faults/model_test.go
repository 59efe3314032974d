//go:build e2e && linux

package faults

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"directx-nri/internal/allocation"
	"directx-nri/internal/durable"
	"directx-nri/internal/paths"
	"directx-nri/test/bed"
)

const (
	nriTimeout = 2 * time.Second // containerd waits as long for an NRI plugin, once
	creation   = 1 * time.Second // without a plugin
	// descriptorSlack is for connections that are just made or closed.
	descriptorSlack = 3
	settleTimeout   = 60 * time.Second // from the last fault to the start of all pods
)

// model is what is known about the node independently of the product's programs.
type model struct {
	records map[string][]string          // the replicas that each token stands for, by the record's ID
	live    map[string]bool              // the records that there are, by their IDs
	holders map[string]string            // the pods of the records that there are, by the record's ID
	torn    map[string]bool              // the records that were torn: the advertiser may not end them
	tokens  map[string]map[string]string // the tokens of containers that have started, by pod
	reports int64                        // how much of the containers' reports was read
	events  bed.Mark                     // how much of the kubelet's log was read
	pulled  map[string]time.Time
	started map[string]bool // the containers that have started once
	settled bool            // the kubelet has read its checkpoint, and nothing fails
	mounts  int             // before the first pod
	// descriptors are the open files of the daemons before the first pod.
	descriptors map[string]int
}

// container is a running container of a pod.
type container struct {
	pod, name string
	spec      bed.Container
	view      bed.View
}

func (r *round) begin() {
	r.pulled, r.records, r.holders = map[string]time.Time{}, map[string][]string{}, map[string]string{}
	r.live, r.started = map[string]bool{}, map[string]bool{}
	r.torn, r.tokens = map[string]bool{}, map[string]map[string]string{}
	r.mounts, r.descriptors = r.countMounts(), r.countDescriptors()
}

// record is the part of a file in the directory of the records that the model needs.
type record struct {
	Body struct {
		ID, Resource string
		Replicas     []struct{ ID, InstanceID string }
		Holder       struct{ PodName string }
	}
}

// refresh reads the records and their bindings.
func (r *round) refresh() {
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
		if err := json.Unmarshal(data, &e); err != nil || e.Body.ID != id {
			if !r.torn[id] {
				r.t.Errorf("%s: ID %q, %v", file.Name(), e.Body.ID, err)
			}
			continue
		}
		if suffix == "bound" {
			r.holders[id] = strings.TrimSuffix(e.Body.Holder.PodName, "-"+bed.Name)
			continue
		}
		r.live[id] = true
		var ids []string
		for _, replica := range e.Body.Replicas {
			ids = append(ids, replica.ID)
			if other := resources[replica.InstanceID]; other != "" && other != e.Body.Resource && len(r.torn) == 0 {
				r.t.Errorf("there are records of GPU %s as %s and as %s", replica.InstanceID, other, e.Body.Resource)
			}
			resources[replica.InstanceID] = e.Body.Resource
		}
		if known := r.records[id]; len(known) > 0 && !slices.Equal(known, ids) {
			r.t.Errorf("record %s was for %v, and is for %v", id, known, ids)
		}
		r.records[id] = ids
	}
}

// check compares the model with the running containers.
func (r *round) check() {
	r.refresh()
	r.checkReports()
	r.checkEvents()
	r.CheckMissingGPUs(r.t)
	if !r.works(r.Containerd) {
		return
	}
	running, err := r.running()
	if err != nil {
		return // containerd has just been restarted.
	}
	holders := map[string]string{}
	for _, c := range running {
		replicas, err := r.promised(c.spec, c.view.Tokens)
		if err != nil && !r.lookup(c.pod).thief && !r.abandoned(c.pod, c.view.Tokens) {
			r.t.Errorf("container %s of pod %s runs: %v", c.name, c.pod, err)
			continue
		}
		if err := r.Compare(c.view, gpusOf(replicas)...); err != nil {
			r.t.Errorf("container %s of pod %s, promised %v: %v", c.name, c.pod, replicas, err)
		}
		if r.early(c.pod) {
			continue
		}
		for _, token := range c.view.Tokens {
			if id := string(allocation.Token(token).ID()); !r.live[id] && !r.torn[id] && !r.lookup(c.pod).thief {
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
		return // It has just been started.
	}
	for _, c := range running {
		var ids []string
		for _, h := range held {
			if h.Pod == c.pod && h.Container == c.name {
				ids = append(ids, h.Replica)
			}
		}
		replicas, err := r.promised(c.spec, c.view.Tokens)
		if err != nil || len(ids) == 0 && !r.settled || r.early(c.pod) {
			continue // Reported already; or the kubelet has not read its checkpoint yet.
		}
		slices.Sort(ids)
		if slices.Sort(replicas); !slices.Equal(ids, replicas) {
			r.t.Errorf("container %s of pod %s: the kubelet allocated %v, its records are for %v", c.name, c.pod, ids, replicas)
		}
	}
}

// promised returns the replicas of a container's tokens, and an error if they are not
// what its pod requests.
func (r *round) promised(spec bed.Container, tokens map[string]string) (replicas []string, err error) {
	for name, count := range map[string]int{"DISPLAY": spec.Display, "COMPUTE": spec.Compute} {
		token := tokens["DIRECTX_ALLOCATION_"+name]
		if (token != "") != (count > 0) {
			return nil, fmt.Errorf("it requests %d of %s, and its token is %q", count, name, token)
		}
		if token == "" {
			continue
		}
		ids := r.records[string(allocation.Token(token).ID())]
		if len(ids) != count {
			return nil, fmt.Errorf("it requests %d of %s, and its record is for %v", count, name, ids)
		}
		replicas = append(replicas, ids...)
	}
	return replicas, nil
}

// early reports whether the kubelet may free a pod's devices before its containers end.
// It does so for pods that it no longer has (GetActivePods in pkg/kubelet, v1.34): static
// pods without their manifest, and pods that were deleted by force.
func (r *round) early(pod string) bool {
	p := r.gone[pod]
	return p != nil && (r.API == nil || p.forced)
}

// abandoned reports whether the kubelet may have created a container without the answer
// of a device plugin: GetDeviceRunContainerOptions in pkg/kubelet/cm/devicemanager
// (v1.34) does so if the pod is deleted while it waits for PreStartContainer.
func (r *round) abandoned(pod string, tokens map[string]string) bool {
	return r.early(pod) && strings.Join(slices.Collect(maps.Values(tokens)), "") == ""
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

// spec returns what a pod's container is.
func (p *pod) spec(name string) (bed.Container, bool) {
	for _, c := range slices.Concat(p.Init, p.Containers) {
		if c.Name == name {
			return c, true
		}
	}
	return bed.Container{}, false
}

// running returns the containers of pods that run.
func (r *round) running() ([]container, error) {
	if !r.works(r.Containerd) {
		return nil, errors.New("containerd does not work")
	}
	list, err := r.CRI.ListContainers(context.Background(), &cri.ListContainersRequest{Filter: &cri.ContainerFilter{
		State: &cri.ContainerStateValue{State: cri.ContainerState_CONTAINER_RUNNING},
	}})
	if err != nil {
		return nil, err
	}
	var all []container
	for _, c := range list.GetContainers() {
		name := strings.TrimSuffix(c.GetLabels()["io.kubernetes.pod.name"], "-"+bed.Name)
		p := r.lookup(name)
		if p == nil {
			r.t.Errorf("a container of an unknown pod %s runs", name)
			continue
		}
		spec, _ := p.spec(c.GetMetadata().GetName())
		view, err := r.ViewContainer(c.GetId())
		if err != nil {
			continue // It has ended.
		}
		// Before runc executes the container's program, the process has runc's environment.
		program, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", view.PID))
		if err != nil || filepath.Base(program) != "busybox" {
			continue
		}
		if view, err = r.ViewContainer(c.GetId()); err != nil {
			continue // It ended while its files were read.
		}
		all = append(all, container{name, spec.Name, spec, view})
	}
	slices.SortFunc(all, func(a, b container) int { return strings.Compare(a.pod+"/"+a.name, b.pod+"/"+b.name) })
	return all, nil
}

// checkReports reads what containers wrote as the first thing that they did.
func (r *round) checkReports() {
	data, err := os.ReadFile(filepath.Join(r.Dir, "reports", "all"))
	if err != nil {
		return // No container has started yet.
	}
	end := int64(strings.LastIndexByte(string(data), '\n') + 1)
	for line := range strings.Lines(string(data[r.reports:end])) {
		fields := strings.Fields(line)
		podName, name, _ := strings.Cut(fields[0], "/")
		p := r.lookup(podName)
		if p == nil || len(fields) < 4 {
			r.t.Errorf("unknown report %q", line)
			continue
		}
		spec, _ := p.spec(name)
		tokens := map[string]string{
			"DIRECTX_ALLOCATION_DISPLAY": strings.TrimPrefix(fields[1], "D="), "DIRECTX_ALLOCATION_COMPUTE": strings.TrimPrefix(fields[2], "C="),
		}
		var gpus []int
		for _, node := range fields[3:] {
			if i, err := strconv.Atoi(strings.TrimPrefix(node, "/dev/dxg")); err == nil {
				gpus = append(gpus, i)
			}
		}
		slices.Sort(gpus)
		r.containers++
		r.started[fields[0]] = true
		if len(gpus) > 0 {
			r.withGPU++
			if r.pods[podName] != nil {
				maps.DeleteFunc(tokens, func(_, token string) bool { return token == "" })
				r.tokens[podName] = tokens
			}
		}
		if replicas, err := r.promised(spec, tokens); err != nil && r.abandoned(podName, tokens) && len(gpus) == 0 {
			r.statistics.abandoned++
		} else if err != nil {
			r.t.Errorf("container %s started with GPUs %v: %v", fields[0], gpus, err)
		} else if want := gpusOf(replicas); !slices.Equal(gpus, want) {
			r.t.Errorf("container %s started with GPUs %v, and its records are for %v", fields[0], gpus, want)
		}
	}
	r.reports = end
}

// checkEvents checks that containers that were promised no GPU were neither refused nor
// delayed by the product: between the kubelet's events Pulled and Created is the call
// that creates the container.
func (r *round) checkEvents() {
	log := r.Kubelet.Log(r.events)
	end := r.events + bed.Mark(strings.LastIndexByte(log, '\n')+1)
	all := maps.Clone(r.pods)
	maps.Copy(all, r.gone)
	for name, p := range all {
		for _, e := range r.EventsSince(name, r.events) {
			_, object, _ := strings.Cut(strings.TrimSuffix(e.Object, "}"), "{")
			spec, found := p.spec(object)
			if !found || spec.Display+spec.Compute > 0 || p.thief {
				continue
			}
			key := name + "/" + object
			switch e.Reason {
			case "Failed":
				if strings.Contains(e.Message, "directx") {
					r.t.Errorf("container %s, which was promised no GPU, was refused: %s", key, e.Message)
				}
			case "Pulled":
				r.pulled[key] = e.At
			case "Created":
				r.checkDelay(key, e.At)
			}
		}
	}
	r.events = end
}

func (r *round) checkDelay(key string, created time.Time) {
	pulled, found := r.pulled[key]
	delete(r.pulled, key)
	if !found {
		return
	}
	took := created.Sub(pulled)
	if time.Since(r.disturbed) < took+5*time.Second {
		return // The kubelet or containerd did not work meanwhile.
	}
	r.slowest = max(r.slowest, took)
	r.checkTook("container "+key, took)
}

// checkTook checks how long the creation of something without a GPU took.
func (r *round) checkTook(what string, took time.Duration) {
	limit := nriTimeout + creation
	var pressure float64 // percent of the time in which a process waited for a processor
	if data, err := os.ReadFile("/proc/pressure/cpu"); err == nil {
		_, _ = fmt.Sscanf(string(data), "some avg10=%f", &pressure) // Not every kernel has it.
	}
	if pressure > 75 {
		limit += 2 * time.Second
	}
	if took > limit {
		r.t.Errorf("the creation of %s, which was promised no GPU, took %v, want %v at most", what, took, limit)
	}
}

// settle ends all faults. Then every pod that can run must run within 60 s, and when all
// are deleted nothing must be left; if patient, not their records either.
func (r *round) settle(patient bool) {
	if r.disk != "" {
		r.repairDisk()
	}
	r.restore()
	r.WriteConfig(r.t, r.config(replicas))
	if !r.works(r.Kubelet) || !r.works(r.Containerd) {
		r.disturbed = time.Now()
	}
	clear(r.frozen)
	r.Recover(r.t, r.full)
	r.apply("fresh", pod{Pod: bed.GPUPod("", 1)})
	r.apply("fresh-plain", pod{Pod: bed.GPUPod("", 0)})
	names, unlisted := slices.Collect(maps.Keys(r.pods)), map[string]bool{} // by this kubelet for the advertiser
	r.SyncPods(r.t, names...)
	start := time.Now()
	for _, name := range names {
		p := r.pods[name]
		bed.Eventually(r.t, settleTimeout-time.Since(start), "pod "+name+" runs after all faults", func() error {
			status, err := r.Status(name)
			switch {
			case err != nil:
				return err
			case status.Status.Phase == "Failed", status.Status.Phase == "Succeeded": // Its containers never end by themselves.
				if r.refused++; !p.faults || !slices.ContainsFunc(r.EventsSince(name, 0), notAdmitted) {
					r.t.Errorf("the kubelet refused pod %s without a fault: %v", name, status)
				}
				unlisted[name] = true
				return nil
			case p.loops && !p.jumped && !r.started[name+"/main"]:
				r.checkReports()
				return errors.New("it has never started")
			case p.loops, p.thief, p.jumped:
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
		})
	}
	r.t.Logf("all pods ran %v after the last fault", time.Since(start).Round(time.Millisecond))
	r.settled = true
	r.check()
	r.settled = false
	if patient {
		time.Sleep(12 * time.Second) // The advertiser lists pods every 10 s.
	}
	for _, name := range names {
		r.drop(name)
	}
	for name := range r.gone {
		r.Remove(r.t, name)
	}
	if patient {
		bed.Eventually(r.t, settleTimeout, "the records of the last pods end", func() error {
			r.refresh()
			for id, pod := range r.holders {
				if slices.Contains(names, pod) && !r.torn[id] && !unlisted[pod] {
					return fmt.Errorf("record %s of pod %s is left", id, pod)
				}
			}
			return nil
		})
	}
	r.checkLeaks()
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
	// Temporary files of a writer that was killed are removed by the next start.
	for _, p := range []*bed.Process{r.Advertiser, r.Plugin} {
		p.Stop(r.t)
		p.Start(r.t)
	}
	r.WaitReady(r.t)
	r.lastFault, r.lastRefusal = time.Time{}, time.Time{} // From here on a standalone container must start.
	r.t.Log(r.standaloneWith(nil, false))
	bed.Eventually(r.t, settleTimeout, "nothing is left of the pods", func() error {
		if running, err := r.running(); err != nil || len(running) > 0 {
			return fmt.Errorf("%d containers run, %w", len(running), err)
		}
		if left := r.leftover(); len(left) > 0 {
			return fmt.Errorf("these processes are left: %v", left)
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
		// A replica has one record that is bound, which ends with the next, and few others.
		if limit := 3 * replicas * 4; len(entries) > limit {
			return fmt.Errorf("%d files of records, want %d at most", len(entries), limit)
		}
		return nil
	})
}

// leftover returns the processes of runc and of standalone containers' shims. containerd
// leaves some shims of pods that are deleted while their containers start.
func (r *round) leftover() (all []string) {
	programs, err := filepath.Glob("/proc/[0-9]*/exe")
	r.must(err)
	for _, link := range programs {
		program, _ := os.Readlink(link)
		data, err := os.ReadFile(filepath.Join(filepath.Dir(link), "cmdline"))
		line := strings.ReplaceAll(string(data), "\x00", " ")
		shim := strings.Contains(program, "containerd-shim-") && strings.Contains(line, "-namespace "+bed.DefaultNamespace)
		if err == nil && strings.Contains(line, r.Dir) && (shim || filepath.Base(program) == "runc") {
			all = append(all, line)
		}
	}
	return all
}

// countMounts counts the mounts below the node's directory.
func (r *round) countMounts() (count int) {
	file, err := os.Open("/proc/self/mountinfo")
	r.must(err)
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if fields := strings.Fields(lines.Text()); len(fields) > 4 && strings.HasPrefix(fields[4], r.Dir) {
			count++
		}
	}
	return count
}

// countDescriptors counts the open files of the product's daemons.
func (r *round) countDescriptors() map[string]int {
	counts := map[string]int{}
	for _, p := range []*bed.Process{r.Advertiser, r.Plugin} {
		entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.PID()))
		r.must(err)
		counts[p.Name] = len(entries)
	}
	return counts
}
