//go:build e2e && linux

package faults

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/test/bed"
)

const (
	replicas = 16 // of each GPU; more than the pods of a round request at once
	maxPods  = 8  // at once
	stateDir = 4 << 20
)

// round is a node with the pods and faults of one sequence.
type round struct {
	statistics
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
	// disturbances are moments at which the kubelet or containerd did not work. lastFault is
	// when there was a fault that concerns the admission of pods, lastRefusal when the kubelet
	// may have refused one for it, changed when the shim may have had no GPU to give.
	disturbances                    []time.Time
	lastFault, lastRefusal, changed time.Time
	// damaged are files with their content before they were torn.
	damaged map[string][]byte
	disk    string // what is wrong with the state directory

	model
}

// pod is a pod that was created.
type pod struct {
	bed.Pod
	// refused reports that the kubelet refused it, which is final. It may also refuse a pod
	// that ran, when it is started again.
	refused bool
	loops   bool // its container ends again and again
	thief   bool // it presents the allocation of another, and is refused unless the plugin is away
	forced  bool // it was deleted by force
}

// report makes a container write at its start what it has.
const report = `echo "$0" /dev/dxg* >>/reports/all
`

func (r *round) start(containerd2, apiPods, windows bool) {
	r.full = bed.NewInventory(2, 1)
	r.pods, r.gone, r.frozen, r.damaged = map[string]*pod{}, map[string]*pod{}, map[*bed.Process]bool{}, map[string][]byte{}
	r.Node = bed.Start(r.t, bed.Options{
		Inventory: r.full, Config: config(replicas), Containerd2: containerd2, APIPods: apiPods, Shim: true, StateDirSize: stateDir,
		WindowsKubelet: windows,
		Offered:        map[string]int{bed.Display: 2 * replicas, bed.Compute: replicas},
	})
	r.lastFault = time.Now()
	r.client = r.Client(r.t)
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
	{5, (*round).strike},
	{5, func(r *round) string { // The kubelet tries all pods again.
		r.SyncPods(r.t, slices.Collect(maps.Keys(r.pods))...)
		return "nudge"
	}},
	{4, (*round).delete},
	{5, (*round).crash},
	{8, (*round).runStandalone},
	{3, (*round).restartWithoutAPI},
	{5, (*round).killOrStart},
	{4, (*round).freezeOrThaw},
	{12, (*round).repairAndCreate},
	{2, (*round).restartSeveral},
	{2, (*round).changeDisk},
	{2, (*round).hangDisk},
	{2, (*round).tearOrRestore},
	{4, (*round).changeTimes},
	{2, (*round).unplugOrPlug},
	{2, (*round).configure},
}

// step does the next step of the sequence. It draws as many random numbers each time,
// so that what follows does not depend on what the node does.
func (r *round) step() {
	sequence := r.random
	r.random = rand.New(rand.NewPCG(sequence.Uint64(), 0))
	pause := time.Duration(max(0, sequence.IntN(1000)-400)) * time.Millisecond // Many steps follow at once.
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
		r.disturbances = append(r.disturbances, time.Now())
	}
	if !r.faulty() {
		r.healthy++
	}
	time.Sleep(pause) // The moment of the next step is what varies here.
}

const (
	// recovery is how long the programs of the node may take after a fault.
	recovery = 15 * time.Second
	// admission is how long the kubelet may take from a pod's arrival to its refusal, or
	// until it lists what the advertiser offers after a change.
	admission = 3 * time.Second
)

// faulty reports whether the kubelet may refuse pods, or was allowed to a moment before:
// until the advertiser is registered again.
func (r *round) faulty() bool {
	if r.disk != "" || len(r.damaged) > 0 || r.Inventory != r.full || !r.works(r.Advertiser) && time.Since(r.changed) < recovery {
		r.changed, r.lastFault = time.Now(), time.Now() // The advertiser compiles changes.
	}
	if !r.works(r.Advertiser) || !r.works(r.Kubelet) || !r.works(r.Containerd) {
		r.lastFault = time.Now()
	}
	if time.Since(r.lastFault) < admission || !r.offers() {
		r.lastRefusal = time.Now()
	}
	if since := time.Since(r.lastFault); since > settleTimeout && time.Since(r.lastRefusal) < time.Second {
		r.t.Errorf("%v after the last fault, the kubelet does not offer the GPUs", since)
	}
	return time.Since(r.lastRefusal) < admission
}

// offers reports whether the kubelet offers GPUs of both resources.
func (r *round) offers() bool {
	if !r.works(r.Kubelet) {
		return false
	}
	offered, err := r.Allocatable()
	return err == nil && offered[bed.Display] > 0 && offered[bed.Compute] > 0
}

// works reports whether a process runs and is not frozen.
func (r *round) works(p *bed.Process) bool { return p.Running() && !r.frozen[p] }

// gpu returns a container with these numbers of GPUs that reports what it has.
func gpu(name string, display, compute int, script string) bed.Container {
	return bed.Container{Name: name, Display: display, Compute: compute, Script: report + script}
}

// create creates a pod of one of several kinds.
func (r *round) create() string {
	if len(r.pods) >= maxPods {
		return r.delete()
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
		{"side", pod{Pod: bed.Pod{Containers: []bed.Container{gpu("main", 1, 0, bed.Wait), gpu("side", 0, 0, bed.Wait), gpu("second", 1, 0, bed.Wait)}}}},
		{"loop", pod{loops: true, Pod: bed.Pod{Containers: []bed.Container{gpu("main", 1, 0, "sleep 0.2; exit 1")}}}},
		{"init", pod{Pod: bed.Pod{
			Init:       []bed.Container{gpu("first", 1, 0, "true"), gpu("none", 0, 0, "true")},
			Containers: []bed.Container{gpu("main", 1, 1, bed.Wait)},
		}}},
		{"thief", r.thief()},
	}
	kind := kinds[r.random.IntN(len(kinds))]
	return "create " + r.apply(kind.name, kind.pod)
}

// thief returns a pod without a GPU that presents the allocation of another pod, deleted or not.
func (r *round) thief() pod {
	id := strings.Repeat("0", 32)
	if ids := slices.Sorted(maps.Keys(r.records)); len(ids) > 0 {
		id = ids[r.random.IntN(len(ids))]
	}
	return pod{thief: true, Pod: bed.Pod{
		Annotations: map[string]string{allocation.AnnotationKey(bed.Display): id}, Containers: []bed.Container{{Name: "main", Script: bed.Wait}},
	}}
}

func (r *round) apply(name string, p pod) string {
	p.Name = name
	name = r.Apply(r.t, p.Pod)
	r.pods[name] = &p
	r.statistics.pods++
	return name
}

// strike creates a pod with a GPU on a node that works, and kills or freezes the
// product's daemons between its admission and its start: at any moment, or shortly after
// the kubelet has the image, when it asks the advertiser and then containerd.
func (r *round) strike() string {
	text := r.repairAll()
	r.await(5*time.Second, r.ready)
	mark := r.Kubelet.Mark()
	text += ", create " + r.apply("struck", pod{Pod: bed.Pod{Containers: []bed.Container{gpu("main", 1, 0, bed.Wait)}}})
	delay := time.Duration(r.random.IntN(800)) * time.Millisecond
	if r.random.IntN(4) > 0 {
		delay /= 16
		r.await(time.Second, func() bool { return strings.Contains(r.Kubelet.Log(mark), `reason="Pulled"`) })
	}
	time.Sleep(delay)                                          // The moment is what varies here.
	freeze, which := r.random.IntN(2) == 0, 1+r.random.IntN(3) // a bit for each daemon
	for i, p := range r.Daemons() {
		if which&(1<<i) == 0 {
			continue
		}
		r.disturb(p)
		if freeze && r.works(p) {
			r.freeze(p)
		} else {
			r.kill(p)
		}
		text += ", strike " + p.Name
	}
	return fmt.Sprintf("%s after %v, freeze %t", text, delay, freeze)
}

// await waits until condition is true, or for limit.
func (r *round) await(limit time.Duration, condition func() bool) {
	for start := time.Now(); time.Since(start) < limit && !condition(); {
		time.Sleep(20 * time.Millisecond) // The kubelet limits the rate of queries.
	}
}

func (r *round) ready() bool {
	r.faulty() // It notes when the kubelet offers no GPU.
	return r.offers() && (r.NRIOff || r.CheckPlugin() == nil)
}

func (r *round) delete() string {
	names := slices.Sorted(maps.Keys(r.pods))
	if len(names) == 0 {
		return "delete nothing"
	}
	name := names[r.random.IntN(len(names))]
	r.pods[name].forced = r.API != nil && r.random.IntN(4) == 0
	r.drop(name)
	return fmt.Sprintf("delete %s, by force %t", name, r.gone[name].forced)
}

func (r *round) drop(name string) {
	r.gone[name] = r.pods[name]
	if r.gone[name].forced {
		r.DeleteNow(r.t, name)
	} else {
		r.Delete(r.t, name)
	}
	delete(r.pods, name)
}

// crash kills the process of a container of a pod.
func (r *round) crash() string {
	running := r.running()
	if len(running) == 0 {
		return "crash nothing"
	}
	c := running[r.random.IntN(len(running))]
	return fmt.Sprintf("crash %s/%s: %v", c.pod, c.name, syscall.Kill(c.view.PID, syscall.SIGKILL))
}

// runStandalone starts a container through the runtime shim, which asks for one GPU or
// none, looks at the container, and removes it.
func (r *round) runStandalone() string {
	if !r.works(r.Containerd) {
		return "no standalone container"
	}
	c := bed.Standalone{ID: fmt.Sprintf("standalone-%d", r.steps), Runtime: bed.DirectX}
	var gpus []int
	if i := r.random.IntN(6); i < 3 {
		gpus = []int{i}
		c.Annotations = map[string]string{"directx.microsoft.com/visible-devices": r.full.GPUs[i].LocationPath()}
	}
	begin := time.Now()
	pid, err := 0, r.client.Create(c)
	if err == nil {
		pid, err = r.client.Start(c.ID)
	}
	if len(gpus) == 0 && err == nil {
		r.checkTook(c.ID, begin, time.Now())
	}
	r.faulty() // It notes when the shim has no GPU to give.
	switch {
	case err == nil:
		r.standalone++
		r.checkStandalone(c.ID, pid, gpus)
	case len(gpus) == 0 || time.Since(r.changed) > recovery:
		r.t.Errorf("standalone container %s, promised GPUs %v: %v", c.ID, gpus, err)
	}
	r.must(r.client.Delete(c.ID))
	return fmt.Sprintf("standalone container with GPUs %v: %v", gpus, err)
}

// checkStandalone checks which GPUs a standalone container has.
func (r *round) checkStandalone(id string, pid int, gpus []int) {
	bed.Eventually(r.t, 10*time.Second, fmt.Sprintf("standalone container %s has GPUs %v", id, gpus), func() error {
		view, err := bed.ViewProcess(id, pid) // Its program is just being executed.
		return cmp.Or(err, r.compare(view, gpus...))
	})
}

// pickProcess returns a process, the product's more often, and mostly one that does not
// work if there is one: most of the time most of the node works.
func (r *round) pickProcess() *bed.Process {
	all := slices.Concat(r.Processes(), r.Daemons(), r.Daemons())
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
	r.freeze(p)
	return "freeze " + p.Name
}

func (r *round) freeze(p *bed.Process) {
	p.Freeze(r.t)
	r.frozen[p] = true
}

// restartWithoutAPI restarts the kubelet while there is no API server: it has no pods
// then, which still run.
func (r *round) restartWithoutAPI() string {
	pause := time.Duration(r.random.IntN(10_000)) * time.Millisecond
	if r.API == nil {
		return "there is no API server"
	}
	r.API.Kill(r.t)
	r.disturb(r.Kubelet)
	r.kill(r.Kubelet)
	r.launch(r.Kubelet)
	time.Sleep(pause) // The advertiser lists pods every 10 s.
	r.API.Start(r.t)
	r.API.WaitAPI(r.t)
	r.disturb(r.Kubelet)
	return fmt.Sprintf("restart the kubelet and, %v later, the API server", pause)
}

// restartSeveral kills some processes, and starts them in another order.
func (r *round) restartSeveral() string {
	all := r.Processes()
	var which []*bed.Process
	for _, i := range r.random.Perm(len(all))[:min(len(all), 2+r.random.IntN(3))] {
		which = append(which, all[i])
	}
	text := "restart"
	for _, p := range which {
		r.disturb(p)
		r.kill(p)
		text += " " + p.Name
	}
	for _, p := range which {
		r.launch(p)
	}
	r.launch(r.Kubelet) // It cannot start before containerd.
	return text
}

// repairAndCreate ends all faults, waits until nothing excuses a refusal any more, and creates a pod.
func (r *round) repairAndCreate() string {
	text := r.repairAll()
	r.await(recovery, func() bool { return !r.faulty() })
	return text + ", " + r.create()
}

// repairAll ends all faults.
func (r *round) repairAll() string {
	for _, p := range r.Processes() { // containerd first
		if !r.works(p) {
			r.disturb(p)
		}
		if r.frozen[p] {
			p.Thaw(r.t)
			delete(r.frozen, p)
		}
		r.launch(p)
	}
	r.restore()
	if r.Inventory != r.full {
		r.WriteInventory(r.t, r.full)
	}
	return "all faults end"
}

// disturb notes that a process is about to be killed, frozen or started.
func (r *round) disturb(p *bed.Process) {
	if p == r.Kubelet || p == r.Advertiser {
		r.lastFault = time.Now()
	}
	if p == r.Kubelet || p == r.Containerd {
		r.disturbances = append(r.disturbances, time.Now())
	}
}

// changeDisk makes the state directory full or read-only and creates a pod whose
// allocation cannot be recorded, or repairs the directory.
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
	return "the state directory is " + r.disk + ", create " + r.apply("unrecorded", pod{Pod: bed.Pod{Containers: []bed.Container{gpu("main", 1, 0, bed.Wait)}}})
}

// hangDisk makes the state directory's disk hang on a node that works. Meanwhile at least
// four containers with a GPU start again, and pods are created, one with a GPU and others without.
func (r *round) hangDisk() string {
	if r.disk != "" {
		return r.repairDisk()
	}
	text := r.repairAll()
	r.await(5*time.Second, r.ready)
	for range 4 {
		text += ", create " + r.apply("hung", pod{Pod: bed.Pod{Containers: []bed.Container{gpu("main", 1, 0, bed.Wait)}}})
	}
	var running []container
	r.await(5*time.Second, func() bool {
		running = r.running()
		running = slices.DeleteFunc(running, func(c container) bool { return c.spec.Display+c.spec.Compute == 0 })
		return len(running) >= 4
	})
	r.must(exec.Command("fsfreeze", "--freeze", r.StateDir).Run())
	defer func() { r.must(exec.Command("fsfreeze", "--unfreeze", r.StateDir).Run()) }()
	for _, c := range running {
		_ = syscall.Kill(c.view.PID, syscall.SIGKILL) // It may have ended.
	}
	text += ", create " + r.apply("allocated", pod{Pod: bed.Pod{Containers: []bed.Container{gpu("main", 1, 0, bed.Wait)}}})
	var beside []string
	for range 1 + r.random.IntN(3) {
		time.Sleep(time.Duration(r.random.IntN(1500)) * time.Millisecond) // The moment is what varies here.
		beside = append(beside, r.apply("beside", pod{Pod: bed.Pod{Containers: []bed.Container{gpu("main", 0, 0, bed.Wait)}}}))
	}
	start := func() bool {
		started := r.running()
		return !slices.ContainsFunc(beside, func(name string) bool {
			return !slices.ContainsFunc(started, func(c container) bool { return c.pod == name })
		})
	}
	if r.await(9*time.Second, start); !start() { // The allocation may take 5 s of it.
		r.t.Errorf("%v do not start while the disk hangs", beside)
	}
	text += fmt.Sprint(", create ", beside)
	r.lastFault = time.Now()
	return fmt.Sprintf("%s while the disk hung and %d containers with a GPU started again", text, len(running))
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
	if r.random.IntN(3) == 0 {
		file = policy.Path(r.StateDir)
	}
	content, err := os.ReadFile(file)
	if err != nil || r.disk != "" {
		return fmt.Sprintf("tear nothing: %v", err)
	}
	r.damaged[file] = content
	if file == policy.Path(r.StateDir) && r.random.IntN(2) == 0 {
		r.must(os.Remove(file))
		return "remove the policy, " + r.runStandalone()
	}
	r.must(os.Truncate(file, int64(len(content)/2)))
	if file == policy.Path(r.StateDir) {
		return "tear the policy, " + r.runStandalone()
	}
	r.torn[strings.TrimSuffix(filepath.Base(file), filepath.Ext(file))] = true
	return "tear " + filepath.Base(file)
}

// restore restores torn files. One that was removed or replaced meanwhile stays so.
func (r *round) restore() {
	if r.disk != "" {
		r.repairDisk()
	}
	for file, content := range r.damaged {
		now, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) && file != policy.Path(r.StateDir) || err == nil && len(now) != len(content)/2 {
			continue
		}
		r.must(os.WriteFile(file, content, 0o600))
	}
	clear(r.damaged)
}

// changeTimes sets a file's times to the past or the future, as after a jump of the clock.
func (r *round) changeTimes() string {
	files, err := filepath.Glob(filepath.Join(r.StateDir, "*", "*.*"))
	r.must(err)
	files = append(files, policy.Path(r.StateDir), r.ConfigFile(), filepath.Join(r.Dir, "inventory", "inventory.yaml"))
	file := files[r.random.IntN(len(files))]
	at := time.Now().Add(time.Duration(r.random.IntN(20_000)-10_000) * time.Hour)
	return fmt.Sprintf("%s is of %v: %v", filepath.Base(file), at.Year(), os.Chtimes(file, at, at))
}

func (r *round) unplugOrPlug() string {
	r.lastFault, r.changed = time.Now(), time.Now()
	if r.Inventory != r.full {
		r.WriteInventory(r.t, r.full)
		return "all GPUs are there"
	}
	gpu := r.random.IntN(len(r.full.GPUs))
	r.WriteInventory(r.t, r.full.Without(gpu))
	return fmt.Sprintf("GPU %d leaves", gpu)
}

// moved is a configuration that offers GPU 1 as another resource.
const moved = `resources:
- {name: directx.microsoft.com/compute, match: {locationPath: "PCIROOT(0)#PCI(1C00)"}, replicas: 16}
- {name: directx.microsoft.com/display, match: {kind: display}, replicas: 16}
- {name: directx.microsoft.com/compute, match: {kind: compute}, replicas: 16}
`

// configure changes the configuration; one in five is invalid.
func (r *round) configure() string {
	text := []string{config(replicas), config(replicas - 4), "replicas: 0\n", moved, moved}[r.random.IntN(5)]
	r.lastFault, r.changed = time.Now(), time.Now() // A good one restarts the advertiser in process.
	if text == moved {                              // What pods hold of the GPU keeps its name until they end.
		r.AtLeast, r.Offered = true, map[string]int{bed.Display: replicas, bed.Compute: replicas}
	}
	r.WriteConfig(r.t, text)
	return "configure " + strings.Join(strings.Fields(text), " ")
}

func (r *round) must(err error) {
	r.t.Helper()
	testutil.NoError(r.t, err)
}
