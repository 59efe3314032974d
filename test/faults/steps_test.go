//go:build e2e && linux

package faults

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"directx-nri/internal/paths"
	"directx-nri/internal/policy"
	"directx-nri/test/bed"
)

const (
	replicas = 16 // of each GPU; more than the pods of a round request at once
	maxPods  = 8  // at once
	stateDir = 1 << 20
)

// round is a node with the pods and faults of one sequence.
type round struct {
	statistics
	failed bool
	t      *testing.T
	random *rand.Rand
	*bed.Node
	client *bed.Client
	full   *bed.Inventory

	pods map[string]*pod // those that were not deleted
	// gone are the pods that were deleted, whose containers may still run.
	gone map[string]*pod
	// frozen are the processes that are stopped by a signal.
	frozen map[*bed.Process]bool
	// disturbed is when the kubelet or containerd last did not work, lastFault when
	// there was any fault.
	disturbed, lastFault time.Time
	// damaged are files with their content before they were torn.
	damaged map[string][]byte
	disk    string // what is wrong with the state directory

	model
}

// pod is a pod that was created.
type pod struct {
	bed.Pod
	// faults reports that a fault was in force while the kubelet had it: the kubelet
	// refuses a pod for good if it cannot allocate, also after its own restart.
	faults bool
	loops  bool // its container ends again and again
}

// report makes a container write at its start what it has, and its tokens.
const report = `echo "$0" "D=$DIRECTX_ALLOCATION_DISPLAY" "C=$DIRECTX_ALLOCATION_COMPUTE" /dev/dxg* >>/witness/reports
`

func (r *round) start(containerd2 bool) {
	r.full = bed.NewInventory(2, 1)
	r.pods, r.gone, r.frozen, r.damaged = map[string]*pod{}, map[string]*pod{}, map[*bed.Process]bool{}, map[string][]byte{}
	r.Node = bed.Start(r.t, bed.Options{
		Inventory: r.full, Config: config(replicas), Containerd2: containerd2, Shim: true, HandlerApart: true, StateDirSize: stateDir,
		Offered: map[string]int{bed.Display: 2 * replicas, bed.Compute: replicas},
	})
	r.client = r.Client(r.t, bed.DefaultNamespace)
	r.begin()
}

func config(replicas int) string { return fmt.Sprintf("replicas: %d\n", replicas) }

// operation is a kind of step. It returns what it did.
type operation struct {
	weight int
	do     func(*round) string
}

var operations = []operation{
	{20, (*round).create},
	{4, (*round).strike},
	{4, (*round).delete},
	{5, (*round).crash},
	{4, (*round).startStandalone},
	{5, (*round).killOrStart},
	{4, (*round).freezeOrThaw},
	{5, (*round).repairAll},
	{2, (*round).restartSeveral},
	{2, (*round).changeDisk},
	{2, (*round).tearOrRestore},
	{2, (*round).unplugOrPlug},
	{1, (*round).configure},
}

// step does the next step of the sequence. It draws as many random numbers each time,
// so that what follows does not depend on what the node does.
func (r *round) step() {
	sequence := r.random
	r.random = rand.New(rand.NewPCG(sequence.Uint64(), 0))
	pause := time.Duration(sequence.IntN(1000)) * time.Millisecond
	defer func() { r.random = sequence }()
	total := 0
	for _, o := range operations {
		total += o.weight
	}
	pick := r.random.IntN(total)
	for _, o := range operations {
		if pick -= o.weight; pick < 0 {
			r.refresh()
			r.t.Logf("%s %3d: %s", time.Now().Format("15:04:05.000"), r.steps, o.do(r))
			break
		}
	}
	if !r.works(r.Kubelet) || !r.works(r.Containerd) {
		r.disturbed = time.Now()
	}
	if r.faulty() {
		for _, p := range r.pods {
			p.faults = true
		}
	}
	time.Sleep(pause) // The moment of the next step is what varies here.
}

// recovery is how long the programs of the node may take after a fault.
const recovery = 15 * time.Second

// faulty reports whether there is a fault or was one shortly before.
func (r *round) faulty() bool {
	if slices.ContainsFunc(r.Processes(), func(p *bed.Process) bool { return !r.works(p) }) ||
		r.disk != "" || len(r.damaged) > 0 || r.Inventory != r.full {
		r.lastFault = time.Now()
	}
	return time.Since(r.lastFault) < recovery
}

// works reports whether a process runs and is not frozen.
func (r *round) works(p *bed.Process) bool { return p.Running() && !r.frozen[p] }

// create creates a pod of one of several kinds.
func (r *round) create() string {
	if len(r.pods) >= maxPods {
		return r.delete()
	}
	gpu := func(name string, display, compute int, script string) bed.Container {
		return bed.Container{Name: name, Display: display, Compute: compute, Script: report + script}
	}
	kinds := []struct {
		name string
		pod  pod
	}{
		{"plain", pod{Pod: bed.Pod{Containers: []bed.Container{gpu("main", 0, 0, bed.Wait)}}}},
		{"plain-loop", pod{loops: true, Pod: bed.Pod{Containers: []bed.Container{gpu("main", 0, 0, "sleep 0.2; exit 1")}}}},
		{"one", pod{Pod: bed.Pod{Containers: []bed.Container{gpu("main", 1, 0, bed.Wait)}}}},
		{"two", pod{Pod: bed.Pod{Containers: []bed.Container{gpu("main", 2, 0, bed.Wait)}}}},
		{"both", pod{Pod: bed.Pod{Containers: []bed.Container{gpu("main", 1, 1, bed.Wait)}}}},
		{"side", pod{Pod: bed.Pod{Containers: []bed.Container{gpu("main", 1, 0, bed.Wait), gpu("side", 0, 0, bed.Wait)}}}},
		{"loop", pod{loops: true, Pod: bed.Pod{Containers: []bed.Container{gpu("main", 1, 0, "sleep 0.2; exit 1")}}}},
		{"init", pod{Pod: bed.Pod{
			Init:       []bed.Container{gpu("first", 1, 0, "true"), gpu("none", 0, 0, "true")},
			Containers: []bed.Container{gpu("main", 1, 1, bed.Wait)},
		}}},
	}
	kind := kinds[r.random.IntN(len(kinds))]
	return "create " + r.apply(kind.name, kind.pod)
}

func (r *round) apply(name string, p pod) string {
	p.Name = name
	p.faults = r.faulty()
	name = r.Apply(r.t, p.Pod)
	r.pods[name] = &p
	r.statistics.pods++
	return name
}

// strike creates a pod, and kills or freezes the product's daemons somewhere between its
// admission and its start.
func (r *round) strike() string {
	text := r.create()
	delay := time.Duration(r.random.IntN(800)) * time.Millisecond
	time.Sleep(delay) // The moment is what varies here.
	freeze, which := r.random.IntN(2) == 0, [][]*bed.Process{{r.Plugin}, {r.Advertiser}, {r.Plugin, r.Advertiser}}[r.random.IntN(3)]
	for _, p := range which {
		r.disturb(p)
		if !freeze {
			r.kill(p)
		} else if r.works(p) {
			p.Freeze(r.t)
			r.frozen[p] = true
		}
		text += ", strike " + p.Name
	}
	return fmt.Sprintf("%s after %v, freeze %t", text, delay, freeze)
}

// pickPod returns one of the pods, "" if there is none.
func (r *round) pickPod() string {
	names := slices.Sorted(maps.Keys(r.pods))
	if len(names) == 0 {
		return ""
	}
	return names[r.random.IntN(len(names))]
}

func (r *round) delete() string {
	name := r.pickPod()
	if name == "" {
		return "delete nothing"
	}
	r.drop(name)
	return "delete " + name
}

func (r *round) drop(name string) {
	r.Delete(r.t, name)
	r.gone[name] = r.pods[name]
	delete(r.pods, name)
}

// crash kills the process of a container of a pod.
func (r *round) crash() string {
	running, err := r.running()
	if err != nil || len(running) == 0 {
		return fmt.Sprintf("crash nothing: %v", err)
	}
	c := running[r.random.IntN(len(running))]
	return fmt.Sprintf("crash %s/%s: %v", c.pod, c.name, syscall.Kill(c.view.PID, syscall.SIGKILL))
}

// startStandalone starts a container through the runtime shim, which asks for one GPU
// or none, looks at it, and removes it.
func (r *round) startStandalone() string {
	if !r.works(r.Containerd) {
		return "no standalone container"
	}
	r.standalone++
	c := bed.Standalone{ID: fmt.Sprintf("standalone-%d", r.steps), Runtime: bed.DirectX}
	var gpus []int
	if i := r.random.IntN(4); i < 3 {
		gpus = []int{i}
		c.Annotations = map[string]string{"directx.microsoft.com/visible-devices": r.full.GPUs[i].LocationPath()}
	}
	err := r.client.Create(c)
	if err == nil {
		_, err = r.client.Start(c.ID)
	}
	if err == nil {
		if compareErr := r.Compare(r.client.View(r.t, c.ID), gpus...); compareErr != nil {
			r.t.Errorf("standalone container %s, promised GPUs %v: %v", c.ID, gpus, compareErr)
		}
	} else if len(gpus) == 0 && len(r.damaged) == 0 || !r.faulty() {
		r.t.Errorf("standalone container %s, promised GPUs %v: %v", c.ID, gpus, err)
	}
	r.client.Remove(r.t, c.ID)
	return fmt.Sprintf("standalone container with GPUs %v: %v", gpus, err)
}

// pickProcess returns a process, the product's more often, and mostly one that does not
// work if there is one: most of the time most of the node works.
func (r *round) pickProcess() *bed.Process {
	all := append(r.Processes(), r.Plugin, r.Advertiser, r.Plugin, r.Advertiser)
	broken := slices.DeleteFunc(slices.Clone(all), r.works)
	if len(broken) > 0 && r.random.IntN(4) > 0 {
		all = broken
	}
	return all[r.random.IntN(len(all))]
}

// kill ends a process as a crash does.
func (r *round) kill(p *bed.Process) {
	if p.Running() {
		p.Kill(r.t)
	}
	delete(r.frozen, p)
}

// launch starts a process. A kubelet that starts without containerd ends soon.
func (r *round) launch(p *bed.Process) {
	if p.Running() || p == r.Kubelet && !r.works(r.Containerd) {
		return
	}
	p.Start(r.t)
	if p == r.Containerd {
		r.WaitContainerd(r.t)
	}
}

// killOrStart kills a process, or starts one that was killed.
func (r *round) killOrStart() string {
	p := r.pickProcess()
	r.disturb(p)
	if p.Running() {
		r.kill(p)
		return "kill " + p.Name
	}
	r.launch(p)
	return "start " + p.Name
}

func (r *round) freezeOrThaw() string {
	p := r.pickProcess()
	r.disturb(p)
	switch {
	case !p.Running():
		r.launch(p)
		return "start " + p.Name
	case r.frozen[p]:
		p.Thaw(r.t)
		delete(r.frozen, p)
		return "thaw " + p.Name
	}
	p.Freeze(r.t)
	r.frozen[p] = true
	return "freeze " + p.Name
}

// restartSeveral kills some processes, and starts them in another order.
func (r *round) restartSeveral() string {
	all := r.Processes()
	var which []*bed.Process
	for _, i := range r.random.Perm(len(all))[:2+r.random.IntN(3)] {
		which = append(which, all[i])
	}
	text := "restart"
	for _, p := range which {
		r.disturb(p)
		r.kill(p)
		text += " " + p.Name
	}
	slices.SortStableFunc(which, func(a, b *bed.Process) int {
		return map[bool]int{true: 1}[a == r.Kubelet] - map[bool]int{true: 1}[b == r.Kubelet]
	})
	for _, p := range which {
		r.launch(p)
	}
	return text
}

// repairAll makes all processes work.
func (r *round) repairAll() string {
	for _, p := range r.Processes() { // containerd first
		r.disturb(p)
		if r.frozen[p] {
			p.Thaw(r.t)
			delete(r.frozen, p)
		}
		r.launch(p)
	}
	return "all processes work"
}

// disturb notes that a process is about to be killed, frozen or started.
func (r *round) disturb(p *bed.Process) {
	r.lastFault = time.Now()
	if p == r.Kubelet || p == r.Containerd {
		r.disturbed = time.Now()
	}
}

// changeDisk makes the state directory full or read-only, or repairs it.
func (r *round) changeDisk() string {
	switch {
	case r.disk != "":
		return r.repairDisk()
	case r.random.IntN(2) == 0:
		r.disk = "full"
		r.must(bed.Fill(filepath.Join(r.StateDir, "filler")))
	default:
		r.disk = "read-only"
		// A mount of its own: the daemons have files open for writing in the other.
		r.must(unix.Mount(r.StateDir, r.StateDir, "", unix.MS_BIND, ""))
		r.must(unix.Mount("", r.StateDir, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""))
	}
	return "the state directory is " + r.disk
}

func (r *round) repairDisk() string {
	switch r.disk {
	case "full":
		r.must(os.Remove(filepath.Join(r.StateDir, "filler")))
	case "read-only":
		r.must(unix.Unmount(r.StateDir, unix.MNT_DETACH))
	}
	r.disk = ""
	return "the state directory is repaired"
}

// tearOrRestore truncates a record, a binding or the node policy, or restores what was
// truncated.
func (r *round) tearOrRestore() string {
	if len(r.damaged) > 0 {
		r.restore()
		return "restore the torn file"
	}
	files, err := filepath.Glob(filepath.Join(paths.Allocations(r.StateDir), "*.*"))
	r.must(err)
	files = slices.DeleteFunc(files, func(f string) bool { return strings.HasPrefix(filepath.Base(f), ".") })
	files = append(files, policy.Path(r.StateDir))
	file := files[r.random.IntN(len(files))]
	content, err := os.ReadFile(file)
	if err != nil || r.disk != "" {
		return fmt.Sprintf("tear nothing: %v", err)
	}
	r.must(os.Truncate(file, int64(len(content)/2)))
	r.damaged[file] = content
	return "tear " + filepath.Base(file)
}

// restore restores torn files. One that was removed or replaced meanwhile stays so.
func (r *round) restore() {
	if r.disk != "" {
		r.repairDisk()
	}
	for file, content := range r.damaged {
		if now, err := os.ReadFile(file); errors.Is(err, fs.ErrNotExist) || err == nil && len(now) != len(content)/2 {
			continue
		}
		r.must(os.WriteFile(file, content, 0o600))
	}
	clear(r.damaged)
}

func (r *round) unplugOrPlug() string {
	r.lastFault = time.Now()
	if r.Inventory != r.full {
		r.WriteInventory(r.t, r.full)
		return "all GPUs are there"
	}
	gpu := r.random.IntN(len(r.full.GPUs))
	r.WriteInventory(r.t, r.full.Without(gpu))
	return fmt.Sprintf("GPU %d leaves", gpu)
}

// configure changes the configuration; one in three is invalid.
func (r *round) configure() string {
	text := []string{config(replicas), config(replicas - 4), "replicas: 0\n"}[r.random.IntN(3)]
	r.lastFault = time.Now() // A good one restarts the advertiser in process.
	r.WriteConfig(r.t, text)
	return "configure " + strings.TrimSpace(text)
}

func (r *round) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}
