//go:build e2e && linux

package windows

import (
	"bytes"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"directx-nri/internal/testutil"
	"directx-nri/test/windows/bed"
)

// TestManifests does on a node what deployments/manifests say for Windows, in
// order, with the programs of the image as it is released: GPUs come to the node,
// the configuration changes, a new version comes, and all of it goes again. The
// node has everything where Windows has it, so that the programs are called with
// what the manifests have.
//
// What Wine cannot show, and real Windows has to:
//   - HostProcess containers: the programs run as what such a container would run,
//     each in a folder with the image's files and with its volumes;
//   - containerd as a service: --restart takes a --restart-command here;
//   - the kubelet's sockets: the advertiser comes as far as asking for one, and the
//     suite writes the records that it would;
//   - that a program is told to end: there are no signals, and it is killed.
func TestManifests(t *testing.T) {
	t.Parallel()
	if skip != "" {
		t.Skip(skip)
	}
	m := newRollout(t)
	before := m.listing(t)
	toml := m.ContainerdConfig(t)

	m.arrives(t)
	m.comesAgain(t)
	m.follows(t)
	m.isReplaced(t)
	m.leaves(t)

	if got := m.ContainerdConfig(t); !bytes.Equal(got, toml) {
		t.Errorf("containerd's configuration is\n%s\nand was\n%s", got, toml)
	}
	after := m.listing(t)
	for _, path := range after {
		if !slices.Contains(before, path) {
			t.Errorf("left on the node: %s", path)
		}
	}
	for _, path := range before {
		if !slices.Contains(after, path) {
			t.Errorf("gone from the node: %s", path)
		}
	}
	// Containerd's own folder is not the same twice.
	for _, path := range m.Listing(t, func(string) bool { return false }) {
		if strings.HasPrefix(path, bed.UsualData) && strings.Contains(path, "directx") {
			t.Errorf("left in containerd's folder: %s", path)
		}
	}
}

// rollout is a node and what is rolled out on it.
type rollout struct {
	node
	image     bed.Image
	newer     bed.Image
	restarter *bed.Restarter
	settings  corev1.ConfigMap
	installed appsv1.DaemonSet
	restored  appsv1.DaemonSet

	volume *bed.Volume
	// address is that of the advertiser's metrics.
	address string
	// shim is what containerd starts containers by, and pod one of them.
	shim string
	pod  bed.Pod
}

// Containers of the node.
const (
	plainID  = "manifests-plain" // started without us
	firstID  = "manifests-first"
	secondID = "manifests-second"
	thirdID  = "manifests-third"
	lateID   = "manifests-late" // started after us
)

func newRollout(t *testing.T) *rollout {
	own := wine.Another(t)
	own.SetHCSProperties(t, schemas(0, 1, 2, 3, 4, 5)) // Windows Server 2022
	config := strings.ReplaceAll(containerdFile(t, "aks-windows.toml")+bed.Timeouts, "\n", "\r\n")
	inventory := bed.NewInventory("manifests")
	m := &rollout{
		node: node{bed.StartNode(t, own, bed.Options{
			Name: "manifests", Inventory: inventory, Live: true, HCSAnswers: true, Usual: true, Bare: true, Config: &config,
		}), inventory.GPUs},
		image: own.BuildImage(t, "v0.9.1"),
		newer: own.BuildImage(t, "v0.9.2"),
	}
	m.restarter = m.NewRestarter(t)
	for _, document := range documents(t, "windows.yaml") {
		decode(t, document, "ConfigMap", &m.settings)
		decode(t, document, "DaemonSet", &m.installed)
	}
	for _, document := range documents(t, "restore-windows.yaml") {
		decode(t, document, "DaemonSet", &m.restored)
	}
	// The kubelet is there, as far as can be.
	if err := os.MkdirAll(m.Linux(`C:\var\lib\kubelet\device-plugins`), 0o700); err != nil {
		t.Fatal(err)
	}
	// And somebody else's container, before any of us.
	m.MustRun(t, bed.Runhcs, plainID, bed.JSON(t, m.Standalone(t, plainID)))
	return m
}

// documents returns the documents of a manifest.
func documents(t *testing.T, name string) []string {
	t.Helper()
	// The newline stays, with which a block of text ends.
	return strings.Split(strings.ReplaceAll(readFile(t, filepath.Join("..", "..", "deployments", "manifests", name)), "\n---\n", "\n\x00"), "\x00")
}

// decode decodes a document when it is of that kind.
func decode(t *testing.T, document, kind string, into any) {
	t.Helper()
	var is metav1.TypeMeta
	err := yaml.Unmarshal([]byte(document), &is)
	if err == nil && is.Kind == kind {
		err = yaml.UnmarshalStrict([]byte(document), into)
	}
	if err != nil {
		t.Fatalf("read a manifest: %v\n%s", err, document)
	}
}

// configMap returns the ConfigMap's data with more in config.yaml.
func (m *rollout) configMap(more string) map[string]string {
	data := maps.Clone(m.settings.Data)
	data["config.yaml"] += more
	return data
}

// pod is a pod of a manifest on the node.
type pod struct {
	*rollout
	name    string
	image   bed.Image
	spec    corev1.PodSpec
	volumes map[string]*bed.Volume
}

// podOf returns a pod of a DaemonSet, with the node's volume of the ConfigMap.
func (m *rollout) podOf(t *testing.T, name string, image bed.Image, set appsv1.DaemonSet) *pod {
	t.Helper()
	p := &pod{rollout: m, name: name, image: image, spec: set.Spec.Template.Spec, volumes: map[string]*bed.Volume{}}
	for _, v := range p.spec.Volumes {
		if v.ConfigMap == nil || v.ConfigMap.Name != m.settings.Name {
			t.Fatalf("volume %s is not of the ConfigMap %s", v.Name, m.settings.Name)
		}
		p.volumes[v.Name] = m.volume
	}
	return p
}

// flags are what the suite adds to a container's arguments.
func (p *pod) flags(c corev1.Container) []string {
	if !slices.Contains(c.Args, "--restart") {
		return nil
	}
	// containerd is a child of the suite and no service, and slow on a busy machine.
	return []string{"--restart-command", p.restarter.Command, "--restart-timeout", "10m"}
}

// initialise runs the init containers, which are those, and returns what they said.
func (p *pod) initialise(t *testing.T, names ...string) map[string]string {
	t.Helper()
	said, failed := p.tryInitialise(t, names...)
	if failed != "" {
		t.Fatalf("pod %s: init container %s failed", p.name, failed)
	}
	return said
}

// tryInitialise is initialise up to the one that fails, "" when none does.
func (p *pod) tryInitialise(t *testing.T, names ...string) (said map[string]string, failed string) {
	t.Helper()
	said = map[string]string{}
	var has []string
	for _, c := range p.spec.InitContainers {
		has = append(has, c.Name)
	}
	if !slices.Equal(has, names) {
		t.Fatalf("pod %s has the init containers %q, want %q", p.name, has, names)
	}
	for _, c := range p.spec.InitContainers {
		status, stdout, stderr := p.Finish(t, p.HostProcess(t.Context(), t, p.name, p.image, p.volumes, c, p.flags(c)...))
		t.Logf("pod %s: %s: exit status %d\n%s%s", p.name, c.Name, status, stdout, stderr)
		said[c.Name] = stdout + stderr
		if status != exitOK {
			return said, c.Name
		}
	}
	return said, ""
}

// run starts one of the containers, with flags more.
func (p *pod) run(t *testing.T, name string, flags ...string) *bed.Background {
	t.Helper()
	i := slices.IndexFunc(p.spec.Containers, func(c corev1.Container) bool { return c.Name == name })
	if i < 0 {
		t.Fatalf("pod %s has no container %s", p.name, name)
	}
	c := p.spec.Containers[i]
	cmd := p.HostProcess(t.Context(), t, p.name, p.image, p.volumes, c, append(p.flags(c), flags...)...)
	return p.Background(t, p.name+"/"+name, cmd)
}

// until waits until a program has said something.
func until(t *testing.T, b *bed.Background, text string) {
	t.Helper()
	bed.Eventually(t, "a program says "+text, func() error {
		if said := b.Output(t) + b.Log(t); !strings.Contains(said, text) {
			return fmt.Errorf("it has said %q", said)
		}
		return nil
	})
}

var arrival = []string{"install", "configure"}

// arrives has the pods of windows.yaml come to the node: from then on containers
// have GPUs, as the ConfigMap says.
func (m *rollout) arrives(t *testing.T) {
	m.volume = m.NewVolume(t, bed.HostProcesses+`\settings`, m.configMap("replicas: 3\nruntimeFiles: {nvidia: {remove: ['NVAPI*.dll']}}\n"))
	p := m.podOf(t, "one", m.image, m.installed)
	p.initialise(t, arrival...)
	m.mustHaveShim(t, m.image)
	m.mustRestart(t, 1)
	m.shim = m.loadedShim(t)
	m.advertises(t, p)

	m.OpenRecorder(t)
	m.pod = m.sandboxBy(t, m.shim, "manifests-pod")
	m.allocatedBy(t, m.shim, m.pod, firstID, m.Record(t, bed.Display, m.gpus[0].Replica(0)))
	document := m.Document(t, firstID)
	if got := document.Locations(); !slices.Equal(got, []string{m.gpus[0].Location}) {
		t.Errorf("AssignedDevices of %s are %q, want its GPU", firstID, got)
	}
	mustMap(t, firstID, document, slices.DeleteFunc(only(m.gpus[0]), func(f bed.Mapped) bool { return strings.HasSuffix(f.HostPath, "nvapi64.dll") }))
}

// mustHaveShim fails the test unless the shim is that of the image.
func (m *rollout) mustHaveShim(t *testing.T, image bed.Image) {
	t.Helper()
	if !bytes.Equal(m.ShimFile(t), image.Program(t, directxShim)) {
		t.Errorf("the file %s is not the shim of the image", m.Shim())
	}
}

// mustRestart fails the test unless containerd was restarted that often by now.
func (m *rollout) mustRestart(t *testing.T, times int) {
	t.Helper()
	if got := m.restarter.Count(); got != times {
		t.Errorf("containerd was restarted %d times by now, want %d", got, times)
	}
}

// loadedShim returns the shim that containerd has loaded for all handlers with
// process isolation.
func (m *rollout) loadedShim(t *testing.T) string {
	t.Helper()
	paths := pathsOf(t, m.ask(t, "status", "--output", "json"))
	for _, handler := range []string{"default", "runhcs-wcow-process"} {
		if paths[handler] != m.Shim() {
			t.Errorf("containerd has loaded %v, want %s for %s", paths, m.Shim(), handler)
		}
	}
	return m.Shim()
}

// ask runs 'dxctl.exe runtime' of the image as a person on the node would.
func (m *rollout) ask(t *testing.T, args ...string) string {
	t.Helper()
	program := bed.HostProcesses + `\one-install\dxctl.exe`
	status, stdout, stderr := m.Finish(t, m.Command(t.Context(), program, append([]string{"runtime"}, args...)...))
	if status != exitOK {
		t.Fatalf("dxctl runtime %v: exit status %d\n%s%s", args, status, stdout, stderr)
	}
	return stdout
}

// advertises has the advertiser of a pod come as far as it can: to the kubelet's
// folder, in which Wine has no sockets.
func (m *rollout) advertises(t *testing.T, p *pod) {
	t.Helper()
	b := m.advertiser(t, p)
	defer b.Kill()
	for _, g := range m.gpus {
		if line := fmt.Sprintf(`msg="GPU is offered" gpu=%q`, g.Location); !strings.Contains(b.Log(t), line) {
			t.Errorf("the advertiser does not say %s", line)
		}
	}
	if !strings.Contains(b.Log(t), " replicas=3 resource="+bed.Display) {
		t.Error("the advertiser does not offer as many replicas as the ConfigMap says")
	}
	for _, c := range p.spec.Containers {
		if c.Name != "advertiser" {
			continue
		}
		for path, status := range map[string]int{c.LivenessProbe.HTTPGet.Path: http.StatusOK, c.ReadinessProbe.HTTPGet.Path: http.StatusServiceUnavailable} {
			if problem := testutil.Answers(t, "http://"+m.address+path, status); problem != "" {
				t.Errorf("the advertiser's %s: %s", path, problem)
			}
		}
	}
}

// advertiser starts the pod's advertiser and waits until it looks for the kubelet.
func (m *rollout) advertiser(t *testing.T, p *pod) *bed.Background {
	t.Helper()
	// Another program of this machine may use the usual port.
	m.address = testutil.FreeAddress(t)
	b := p.run(t, "advertiser", "--metrics-address", m.address)
	until(t, b, "is the kubelet running")
	return b
}

// comesAgain has the node's pod start once more: that changes nothing.
func (m *rollout) comesAgain(t *testing.T) {
	was := m.files(t)
	m.podOf(t, "two", m.image, m.installed).initialise(t, arrival...)
	m.mustRestart(t, 1)
	is := m.files(t)
	for path, info := range is {
		if was[path] == nil || !os.SameFile(was[path], info) || !info.ModTime().Equal(was[path].ModTime()) {
			t.Errorf("%s was written again", path)
		}
	}
	if len(is) != len(was) || len(is) < 4 {
		t.Errorf("there are %v, and were %v", slices.Sorted(maps.Keys(is)), slices.Sorted(maps.Keys(was)))
	}
}

// files returns the files of ours on the node, and containerd's configuration.
func (m *rollout) files(t *testing.T) map[string]fs.FileInfo {
	t.Helper()
	files := map[string]fs.FileInfo{}
	for _, path := range m.listing(t) {
		below := strings.TrimPrefix(path, `C:\`)
		if !strings.Contains(below, "directx") && !strings.Contains(below, "config.toml") {
			continue
		}
		info, err := os.Stat(m.Linux(path))
		if err != nil {
			t.Fatal(err)
		}
		if !info.IsDir() {
			files[path] = info
		}
	}
	return files
}

// listing returns what is on the node, without what its pods and the suite have
// there.
func (m *rollout) listing(t *testing.T) []string {
	t.Helper()
	return m.Listing(t, func(path string) bool {
		for _, others := range []string{
			bed.HostProcesses, bed.UsualData, m.Path("launcher"), m.Path("spec-"), m.Path("layer-"), m.Path("base"), `C:\hcs`,
		} {
			if strings.HasPrefix(path, others) {
				return true
			}
		}
		return false
	})
}

// follows has the ConfigMap change while the pod runs: the next container is
// started as it says now.
func (m *rollout) follows(t *testing.T) {
	token := m.Record(t, bed.Display, m.gpus[1].Replica(0))
	m.closeRecorder(t)
	p := m.podOf(t, "three", m.image, m.installed)
	b := m.advertiser(t, p)
	m.volume.Write(t, m.configMap("assignmentMode: class-guid\n"))
	until(t, b, "The configuration has changed and is in force")
	m.allocatedBy(t, m.shim, m.pod, secondID, token)
	document := m.Document(t, secondID)
	if len(document.AssignedDevices) != 1 || document.AssignedDevices[0].InterfaceClassGUID != displayClass {
		t.Errorf("AssignedDevices of %s are %+v, want the class alone", secondID, document.AssignedDevices)
	}
	mustMap(t, secondID, document, only(m.gpus[1]))
	m.DeleteIn(t, criNamespace, secondID)
	m.mustLeaveNothing(t, secondID)
	// An invalid one changes nothing.
	in := m.policy(t)
	m.volume.Write(t, m.configMap("assignmentMode: sometimes\n"))
	until(t, b, "The configuration cannot be used, and the last one stays in force")
	if now := m.policy(t); now != in {
		t.Errorf("after an invalid ConfigMap the node policy is\n%s\nand was\n%s", now, in)
	}
	m.volume.Write(t, m.settings.Data)
	bed.Eventually(t, "the ConfigMap is in force again", func() error {
		if now := m.policy(t); strings.Contains(now, "class-guid") {
			return fmt.Errorf("the node policy is %s", now)
		}
		return nil
	})
	b.Kill()
	m.OpenRecorder(t)
	m.mustRestart(t, 1)
}

// policy returns the node policy's file.
func (m *rollout) policy(t *testing.T) string {
	t.Helper()
	return readFile(t, m.Linux(bed.UsualState+`\policy.json`))
}

// closeRecorder leaves the records to the advertiser.
func (m *rollout) closeRecorder(t *testing.T) {
	t.Helper()
	if err := m.Recorder.Close(); err != nil {
		t.Fatal(err)
	}
}

// isReplaced has a newer image come, while containers run and one is starting.
func (m *rollout) isReplaced(t *testing.T) {
	p := m.podOf(t, "four", m.newer, m.installed)
	finish := m.startHanging(t, thirdID, "1")
	p.initialise(t, arrival...)
	m.mustHaveShim(t, m.newer)
	if err := finish(); err != nil {
		t.Errorf("the container that was starting: %v", err)
	} else {
		m.mustHave(t, thirdID, m.gpus[1])
	}
	m.mustRestart(t, 1)
	id := "manifests-fourth"
	m.allocatedBy(t, m.shim, m.pod, id, m.Record(t, bed.Display, m.gpus[0].Replica(1)))
	m.mustHave(t, id, m.gpus[0])
	m.DeleteIn(t, criNamespace, id)
	m.mustLeaveNothing(t, id)
}

// leaves has the pods of restore-windows.yaml take those of windows.yaml's place:
// the containers that are there go on, by the real shim.
func (m *rollout) leaves(t *testing.T) {
	m.closeRecorder(t)
	p := m.podOf(t, "five", m.newer, m.restored)
	said := p.initialise(t, "unconfigure", "uninstall")
	m.mustRestart(t, 3)
	for _, id := range []string{m.pod.Sandbox, firstID, thirdID} {
		if !strings.Contains(said["uninstall"], "/"+id+" over to "+m.Path(runhcsShim)) {
			t.Errorf("uninstall does not say that %s is handed over", id)
		}
	}
	b := p.run(t, "done")
	until(t, b, "waiting for a signal")
	if text := b.Output(t); !strings.Contains(text, "there is nothing to remove") {
		t.Errorf("the last step still had to do: %s", text)
	}
	m.mustRestart(t, 3)
	b.Kill()

	for namespace, ids := range map[string][]string{criNamespace: {m.pod.Sandbox, firstID}, "default": {plainID, thirdID}} {
		tasks := m.TasksIn(t, namespace)
		for _, id := range ids {
			if tasks[id] != "RUNNING" || m.Created(t, id) != 1 {
				t.Errorf("task %s is %q and was created %d times, want it go on", id, tasks[id], m.Created(t, id))
			}
		}
	}
	// The way that containers of all handlers go from now on.
	spec := m.Standalone(t, lateID)
	spec.Process.Env = append(spec.Process.Env, "DIRECTX_VISIBLE_DEVICES=all")
	m.MustRun(t, bed.Runhcs, lateID, bed.JSON(t, spec))
	if devices := m.Document(t, lateID).AssignedDevices; len(devices) > 0 {
		t.Errorf("AssignedDevices of %s are %v, want none", lateID, devices)
	}
	for _, c := range [][2]string{{criNamespace, firstID}, {criNamespace, m.pod.Sandbox}, {"default", thirdID}, {"default", plainID}, {"default", lateID}} {
		m.DeleteIn(t, c[0], c[1])
		m.mustLeaveNothing(t, c[1])
	}
}
