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
	suite "directx-nri/test/bed"
	"directx-nri/test/windows/bed"
)

// TestManifests runs what deployments/manifests have for Windows, with the programs of the
// released image: they are installed, the configuration changes, a new version is
// installed, and everything is removed. The node has the usual paths, so that the programs
// run with the arguments of the manifests.
//
// Limits of Wine:
//   - HostProcess containers are programs in a directory with the image's files and the
//     volumes;
//   - containerd is not a service: --restart is used with --restart-command;
//   - there are no sockets: the advertiser starts and looks for the kubelet's, and the
//     suite writes the records;
//   - there are no signals: programs are killed.
func TestManifests(t *testing.T) {
	t.Parallel()
	if skip != "" {
		t.Skip(skip)
	}
	m := newRollout(t)
	before := m.listing(t)
	toml := m.ContainerdConfig(t)

	m.install(t)
	m.installAgain(t)
	m.reconfigure(t)
	m.upgrade(t)
	m.uninstall(t)

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
			t.Errorf("removed from the node: %s", path)
		}
	}
	// containerd's own files differ.
	for _, path := range m.Listing(t, func(string) bool { return false }) {
		if strings.HasPrefix(path, bed.UsualData) && strings.Contains(path, "directx") {
			t.Errorf("left in containerd's directory: %s", path)
		}
	}
}

// rollout is a node and what is installed on it.
type rollout struct {
	node
	image     bed.Image
	newer     bed.Image
	restarter *bed.Restarter
	settings  corev1.ConfigMap
	installed appsv1.DaemonSet
	restored  appsv1.DaemonSet

	// volume is that of the ConfigMap, setup the emptyDir of all pods.
	volume, setup *bed.Volume
	// address is that of the advertiser's metrics.
	address string
	// shim is the runtime path of containerd's handlers.
	shim string
	pod  bed.Pod
}

// Containers of the node.
const (
	plainID  = "manifests-plain" // started before the installation
	firstID  = "manifests-first"
	secondID = "manifests-second"
	thirdID  = "manifests-third"
	lateID   = "manifests-late" // started after the removal
)

func newRollout(t *testing.T) *rollout {
	own := wine.Another(t)
	own.SetHCSProperties(t, server2022)
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
	if err := os.MkdirAll(m.Linux(`C:\var\lib\kubelet\device-plugins`), 0o700); err != nil {
		t.Fatal(err)
	}
	m.MustRun(t, bed.Runhcs, plainID, bed.JSON(t, m.Standalone(t, plainID)))
	return m
}

// documents returns the documents of a manifest.
func documents(t *testing.T, name string) []string {
	t.Helper()
	// A block of text ends with the newline before the separator.
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

// configMap returns the ConfigMap's data with more keys in config.yaml.
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

// podOf returns a pod of a DaemonSet, with the node's volumes.
func (m *rollout) podOf(t *testing.T, name string, image bed.Image, set appsv1.DaemonSet) *pod {
	t.Helper()
	p := &pod{rollout: m, name: name, image: image, spec: set.Spec.Template.Spec, volumes: map[string]*bed.Volume{}}
	for _, v := range p.spec.Volumes {
		switch {
		case v.EmptyDir != nil:
			p.volumes[v.Name] = m.setup
		case v.ConfigMap != nil && v.ConfigMap.Name == m.settings.Name:
			p.volumes[v.Name] = m.volume
		default:
			t.Fatalf("volume %s is not that of ConfigMap %s", v.Name, m.settings.Name)
		}
	}
	return p
}

// flags returns what the suite adds to a container's arguments.
func (p *pod) flags(c corev1.Container) []string {
	if !slices.Contains(c.Args, "--restart") {
		return nil
	}
	flags := []string{"--restart-command", p.restarter.Command, "--restart-timeout", "10m"}
	if c.Name == "setup" {
		flags = append(flags, "--restart-spread", "1s")
	}
	return flags
}

// initialise runs the init containers, which have those names, and returns their output.
func (p *pod) initialise(t *testing.T, names ...string) map[string]string {
	t.Helper()
	output := map[string]string{}
	var has []string
	for _, c := range p.spec.InitContainers {
		has = append(has, c.Name)
		status, stdout, stderr := p.Finish(t, p.HostProcess(t.Context(), t, p.name, p.image, p.volumes, c, p.flags(c)...))
		t.Logf("pod %s: %s: exit status %d\n%s%s", p.name, c.Name, status, stdout, stderr)
		output[c.Name] = stdout + stderr
		if status != exitOK {
			t.Fatalf("pod %s: init container %s failed", p.name, c.Name)
		}
	}
	if !slices.Equal(has, names) {
		t.Fatalf("pod %s has the init containers %q, want %q", p.name, has, names)
	}
	return output
}

// setUp runs the container that sets the node up, until it waits for a signal.
func (p *pod) setUp(t *testing.T) {
	t.Helper()
	b := p.run(t, "setup")
	until(t, b, "the node is set up; waiting for a signal")
	t.Logf("pod %s: setup:\n%s", p.name, b.Log(0))
	b.Kill(t)
}

// run starts a container with more flags.
func (p *pod) run(t *testing.T, name string, flags ...string) *suite.Process {
	t.Helper()
	i := slices.IndexFunc(p.spec.Containers, func(c corev1.Container) bool { return c.Name == name })
	if i < 0 {
		t.Fatalf("pod %s has no container %s", p.name, name)
	}
	c := p.spec.Containers[i]
	cmd := p.HostProcess(t.Context(), t, p.name, p.image, p.volumes, c, append(p.flags(c), flags...)...)
	return p.Background(t, p.name+"/"+name, cmd)
}

// until waits until a program has printed text.
func until(t *testing.T, p *suite.Process, text string) {
	t.Helper()
	bed.Eventually(t, p.Name+" prints "+text, func() error {
		if log := p.Log(0); !strings.Contains(log, text) {
			return fmt.Errorf("it has printed %q", log)
		}
		return nil
	})
}

// install starts the pods of windows.yaml: containers have GPUs according to the ConfigMap.
func (m *rollout) install(t *testing.T) {
	m.volume = m.NewVolume(t, bed.HostProcesses+`\settings`, m.configMap("replicas: 3\nruntimeFiles: {nvidia: {remove: ['NVAPI*.dll']}}\n"))
	m.setup = m.NewVolume(t, bed.HostProcesses+`\setup`, nil)
	p := m.podOf(t, "one", m.image, m.installed)
	p.setUp(t)
	m.mustHaveShim(t, m.image)
	m.mustRestart(t, 1)
	paths := loadedPaths(t, m.installedDxctl(t, "runtime", "status", "--output", "json"))
	for _, handler := range []string{"default", "runhcs-wcow-process"} {
		if paths[handler] != m.Shim() {
			t.Errorf("containerd has loaded %v, want %s for %s", paths, m.Shim(), handler)
		}
	}
	m.shim = m.Shim()
	m.advertises(t, p)

	m.OpenRecorder(t)
	m.pod = m.sandboxBy(t, m.shim, "manifests-pod")
	m.allocatedBy(t, m.shim, m.pod, firstID, m.Record(t, bed.Display, m.gpus[0].Replica(0)))
	document := m.Document(t, firstID)
	if got := document.Locations(); !slices.Equal(got, []string{m.gpus[0].Location}) {
		t.Errorf("AssignedDevices of %s are %q, want its GPU", firstID, got)
	}
	mustMap(t, firstID, document, slices.DeleteFunc(filesOf(m.gpus[0]), func(f bed.Mapped) bool { return strings.HasSuffix(f.HostPath, "nvapi64.dll") }))
}

// mustHaveShim fails the test unless the shim is that of the image.
func (m *rollout) mustHaveShim(t *testing.T, image bed.Image) {
	t.Helper()
	if !bytes.Equal(m.ShimFile(t), image.Program(t, directxShim)) {
		t.Errorf("the file %s is not the shim of the image", m.Shim())
	}
}

// mustRestart fails the test unless containerd was restarted that often since the start.
func (m *rollout) mustRestart(t *testing.T, times int) {
	t.Helper()
	if got := m.restarter.Count(); got != times {
		t.Errorf("containerd was restarted %d times, want %d", got, times)
	}
}

// installedDxctl runs dxctl.exe of the image without flags for paths.
func (m *rollout) installedDxctl(t *testing.T, args ...string) string {
	t.Helper()
	status, stdout, stderr := m.Finish(t, m.Command(t.Context(), bed.HostProcesses+`\one-setup\dxctl.exe`, args...))
	if status != exitOK {
		t.Fatalf("dxctl %v: exit status %d\n%s%s", args, status, stdout, stderr)
	}
	return stdout
}

// advertises runs a pod's advertiser up to the kubelet's socket.
func (m *rollout) advertises(t *testing.T, p *pod) {
	t.Helper()
	b := m.advertiser(t, p)
	defer b.Kill(t)
	for _, g := range m.gpus {
		if line := fmt.Sprintf(`msg="GPU is offered" gpu=%q`, g.Location); !strings.Contains(b.Log(0), line) {
			t.Errorf("the advertiser does not log %s", line)
		}
	}
	if !strings.Contains(b.Log(0), " replicas=3 resource="+bed.Display) {
		t.Error("the advertiser does not offer the replicas of the ConfigMap")
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
func (m *rollout) advertiser(t *testing.T, p *pod) *suite.Process {
	t.Helper()
	// Another program of this machine may use the usual port.
	m.address = testutil.FreeAddress(t)
	b := p.run(t, "advertiser", "--metrics-address", m.address)
	until(t, b, "is the kubelet running")
	return b
}

// installAgain starts the pod again, which changes nothing.
func (m *rollout) installAgain(t *testing.T) {
	was := m.files(t)
	m.podOf(t, "two", m.image, m.installed).setUp(t)
	m.mustRestart(t, 1)
	is := m.files(t)
	for path, info := range is {
		if was[path] == nil || !os.SameFile(was[path], info) || !info.ModTime().Equal(was[path].ModTime()) {
			t.Errorf("%s was rewritten", path)
		}
	}
	if len(is) != len(was) || len(is) < 4 {
		t.Errorf("the files are %v, and were %v", slices.Sorted(maps.Keys(is)), slices.Sorted(maps.Keys(was)))
	}
}

// files returns the product's files on the node, and containerd's configuration.
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

// listing returns the files on the node, without those of pods and of the suite.
func (m *rollout) listing(t *testing.T) []string {
	t.Helper()
	return m.Listing(t, func(path string) bool {
		for _, other := range []string{
			bed.HostProcesses, bed.UsualData, m.Path("launcher"), m.Path("spec-"), m.Path("layer-"), m.Path("base"), `C:\hcs`,
		} {
			if strings.HasPrefix(path, other) {
				return true
			}
		}
		return false
	})
}

// reconfigure changes the ConfigMap while the pod runs, which applies to the next container.
func (m *rollout) reconfigure(t *testing.T) {
	token := m.Record(t, bed.Display, m.gpus[1].Replica(0))
	m.closeRecorder(t)
	p := m.podOf(t, "three", m.image, m.installed)
	b := m.advertiser(t, p)
	m.volume.Write(t, m.configMap("assignmentMode: class-guid\n"))
	until(t, b, "The configuration has changed and is in force")
	m.allocatedBy(t, m.shim, m.pod, secondID, token)
	mustMap(t, secondID, m.mustHaveClass(t, secondID), filesOf(m.gpus[1]))
	m.DeleteIn(t, criNamespace, secondID)
	m.mustLeaveNothing(t, secondID)
	// An invalid one changes nothing.
	in := m.policy(t)
	m.volume.Write(t, m.configMap("assignmentMode: sometimes\n"))
	until(t, b, "The configuration cannot be used, and the last one")
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
	b.Kill(t)
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

// upgrade installs a newer image while containers run and one is starting.
func (m *rollout) upgrade(t *testing.T) {
	p := m.podOf(t, "four", m.newer, m.installed)
	finish := m.startHanging(t, thirdID, "1")
	p.setUp(t)
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

// uninstall replaces the pods by those of restore-windows.yaml. Containers continue with
// the real shim.
func (m *rollout) uninstall(t *testing.T) {
	m.closeRecorder(t)
	p := m.podOf(t, "five", m.newer, m.restored)
	output := p.initialise(t, "unconfigure", "uninstall")
	m.mustRestart(t, 3)
	for _, id := range []string{m.pod.Sandbox, firstID, thirdID} {
		if !strings.Contains(output["uninstall"], "/"+id+" over to "+m.Path(runhcsShim)) {
			t.Errorf("uninstall does not report that %s is handed over", id)
		}
	}
	b := p.run(t, "done")
	until(t, b, "waiting for a signal")
	if text := b.Log(0); !strings.Contains(text, "there is nothing to remove") {
		t.Errorf("the last container removed something: %s", text)
	}
	m.mustRestart(t, 3)
	b.Kill(t)

	for namespace, ids := range map[string][]string{criNamespace: {m.pod.Sandbox, firstID}, "default": {plainID, thirdID}} {
		tasks := m.TasksIn(t, namespace)
		for _, id := range ids {
			if tasks[id] != "RUNNING" || m.Created(t, id) != 1 {
				t.Errorf("task %s is %q and was created %d times, want RUNNING, once", id, tasks[id], m.Created(t, id))
			}
		}
	}
	m.MustRun(t, bed.Runhcs, lateID, m.visible(t, lateID, "all"))
	if devices := m.Document(t, lateID).AssignedDevices; len(devices) > 0 {
		t.Errorf("AssignedDevices of %s are %v, want none", lateID, devices)
	}
	for _, c := range [][2]string{{criNamespace, firstID}, {criNamespace, m.pod.Sandbox}, {"default", thirdID}, {"default", plainID}, {"default", lateID}} {
		m.DeleteIn(t, c[0], c[1])
		m.mustLeaveNothing(t, c[1])
	}
}
