//go:build e2e && windows

// Package rollout runs what deployments/manifests have for Windows. It has a Wine prefix of
// its own, with the paths of a real node.
package rollout

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/test/windows/bed"
)

var machine *bed.Machine

func TestMain(m *testing.M) { os.Exit(bed.Main(m, &machine)) }

// TestManifests runs what deployments/manifests have for Windows, with the programs of the
// released image: they are installed, the configuration changes, a new version is
// installed, and everything is removed. The node has the usual paths, so that the programs
// run with the arguments of the manifests.
//
// Limits of Wine:
//   - HostProcess containers are programs in a directory with the image's files, and the
//     volume of the ConfigMap is a directory;
//   - containerd is not a service: --restart is used with --restart-command;
//   - there are no sockets: the advertiser starts and looks for the kubelet's, and the
//     suite writes the records;
//   - there are no signals: programs are killed.
func TestManifests(t *testing.T) {
	m := newRollout(t)
	before := m.listing(t)
	toml := m.ContainerdConfig(t)

	m.waitForGPU(t)
	m.install(t)
	m.installAgain(t)
	m.reconfigure(t)
	m.upgrade(t)
	m.uninstall(t)

	if got := m.ContainerdConfig(t); !bytes.Equal(got, toml) {
		t.Errorf("containerd's configuration is\n%s\nand was\n%s", got, toml)
	}
	if diff := cmp.Diff(before, m.listing(t)); diff != "" {
		t.Errorf("the files on the node (-before +after):\n%s", diff)
	}
}

// rollout is a node and what is installed on it.
type rollout struct {
	*bed.Node
	restarter *bed.Restarter
	settings  corev1.ConfigMap
	installed appsv1.DaemonSet

	// address is that of the advertiser's metrics.
	address string
	pod     bed.Pod
}

const (
	// Versions of the images.
	oldVersion = "v0.9.1"
	newVersion = "v0.9.2"

	// Containers of the node.
	plainID  = "manifests-plain" // started before the installation
	firstID  = "manifests-first"
	secondID = "manifests-second"
	thirdID  = "manifests-third"
	lateID   = "manifests-late" // started after the removal
)

func newRollout(t *testing.T) *rollout {
	config := strings.ReplaceAll(bed.ContainerdFile(t, "aks-windows.toml")+bed.Timeouts, "\n", "\r\n")
	m := &rollout{Node: machine.StartNode(t, bed.Options{Name: "manifests", Discover: true, Usual: true, Bare: true, Config: &config})}
	m.restarter = m.NewRestarter(t)
	m.settings = object[corev1.ConfigMap](t, "windows.yaml", "ConfigMap")
	m.installed = object[appsv1.DaemonSet](t, "windows.yaml", "DaemonSet")
	testutil.NoError(t, os.MkdirAll(`C:\var\lib\kubelet\device-plugins`, 0o700), os.MkdirAll(hostProcesses+`\setup`, 0o700))
	m.MustRun(t, bed.Runhcs, plainID, m.Standalone(t, plainID))
	return m
}

// object reads the object of a kind from a manifest.
func object[T any](t *testing.T, manifest, kind string) (object T) {
	t.Helper()
	text := string(bed.ReadFile(t, filepath.Join(bed.Root(t), "deployments", "manifests", manifest)))
	for document := range strings.SplitSeq(text, "\n---\n") {
		if !strings.Contains(document, "\nkind: "+kind+"\n") {
			continue
		}
		// Its last text ends with the line that the separator took.
		if err := yaml.UnmarshalStrict([]byte(document+"\n"), &object); err != nil {
			t.Fatalf("read %s: %v", manifest, err)
		}
		return object
	}
	t.Fatalf("%s has no %s", manifest, kind)
	return object
}

const (
	// hostProcesses is the directory of the HostProcess containers' files.
	hostProcesses = `C:\hpc`
	// settings is that of the ConfigMap's volume.
	settings = hostProcesses + `\settings`
)

// configure writes the ConfigMap's volume, with more keys in config.yaml.
func (m *rollout) configure(t *testing.T, more string) {
	t.Helper()
	for name, text := range m.settings.Data {
		bed.Replace(t, settings+`\`+name, []byte(text+more))
	}
}

// pod is a pod of a manifest on the node, with an image of that version. Its volumes are
// the ConfigMap and one of all pods.
type pod struct {
	*rollout
	name, version string
	spec          corev1.PodSpec
}

// podOf returns a pod of a DaemonSet.
func (m *rollout) podOf(name, version string, set appsv1.DaemonSet) *pod {
	return &pod{m, name, version, set.Spec.Template.Spec}
}

// mountPoint is the environment variable for the directory of a container's files.
// https://kubernetes.io/docs/tasks/configure-pod-container/create-hostprocess-pod/#volume-mounts
const mountPoint = "CONTAINER_SANDBOX_MOUNT_POINT"

// command returns a command that runs a container as the node would: a program of the
// image, in a directory with the image's files. flags follow its own arguments.
func (p *pod) command(t *testing.T, c corev1.Container, flags ...string) *exec.Cmd {
	t.Helper()
	dir := hostProcesses + `\` + p.name + "-" + c.Name
	if err := os.CopyFS(dir, os.DirFS(p.Executable(p.version))); err != nil {
		t.Fatalf("mount the image: %v", err)
	}
	paths := []string{"%" + mountPoint + "%", dir}
	for _, m := range c.VolumeMounts {
		paths = append([]string{`C:` + strings.ReplaceAll(m.MountPath, "/", `\`), hostProcesses + `\` + m.Name}, paths...)
	}
	var line []string
	for _, word := range slices.Concat(c.Command, c.Args) {
		line = append(line, strings.NewReplacer(paths...).Replace(word))
	}
	if slices.Contains(c.Args, "--restart") {
		line = append(line, "--restart-command", p.restarter.Command, "--restart-timeout", "10m")
		if c.Name == "setup" {
			line = append(line, "--restart-spread", "1s")
		}
	}
	cmd := p.Command(t.Context(), line[0], append(line[1:], flags...)...)
	cmd.Env = append(cmd.Env, mountPoint+"="+dir)
	return cmd
}

// container returns a container of the pod.
func (p *pod) container(t *testing.T, name string) corev1.Container {
	t.Helper()
	i := slices.IndexFunc(p.spec.Containers, func(c corev1.Container) bool { return c.Name == name })
	if i < 0 {
		t.Fatalf("pod %s has no container %s", p.name, name)
	}
	return p.spec.Containers[i]
}

// start starts a container of the pod and waits until it prints text.
func (p *pod) start(t *testing.T, name, text string, flags ...string) *bed.Background {
	t.Helper()
	b := p.Background(t, p.command(t, p.container(t, name), flags...))
	until(t, b, text)
	return b
}

// setUp runs the container that sets the node up, until it waits for a signal, and returns
// its output.
func (p *pod) setUp(t *testing.T) string {
	t.Helper()
	b := p.start(t, "setup", "the node is set up; waiting for a signal")
	b.Kill()
	return b.Log()
}

// advertiser starts the advertiser and waits until it looks for the kubelet.
func (p *pod) advertiser(t *testing.T) *bed.Background {
	t.Helper()
	// Another program of this machine may use the usual port.
	p.address = testutil.FreeAddress(t)
	return p.start(t, "advertiser", "Cannot listen in the kubelet's device plugin directory", "--metrics-address", p.address)
}

// until waits until a program has printed text.
func until(t *testing.T, p *bed.Background, text string) {
	t.Helper()
	bed.Eventually(t, "a program prints "+text, func() error {
		if log := p.Log(); !strings.Contains(log, text) {
			return fmt.Errorf("it has printed %q", log)
		}
		return nil
	})
}

// waitForGPU starts the pod on the node without its GPUs, which is left as it is but for
// the node policy.
func (m *rollout) waitForGPU(t *testing.T) {
	m.Plug(t)
	m.configure(t, "")
	config, before := m.ContainerdConfig(t), m.listing(t)
	p := m.podOf("zero", oldVersion, m.installed)
	setup := p.start(t, "setup", "waiting for a GPU, and changing nothing")
	p.address = testutil.FreeAddress(t)
	advertiser := p.start(t, "advertiser", "No GPU is advertised", "--metrics-address", p.address)
	if problem := testutil.Answers(t, "http://"+p.address+"/readyz", http.StatusOK); problem != "" {
		t.Errorf("a node without a GPU has nothing to wait for: %s", problem)
	}
	time.Sleep(3 * time.Second) // Neither does more.
	advertiser.Kill()
	setup.Kill()
	m.mustRestart(t, 0)
	state := paths.Default().State
	before[state], before[policy.Path(state)] = true, true
	if diff := cmp.Diff(before, m.listing(t)); diff != "" || !bytes.Equal(config, m.ContainerdConfig(t)) {
		t.Errorf("a node without a GPU was changed: the files (-before +after):\n%s", diff)
	}
	m.Plug(t, m.GPUs...)
}

// install starts the pods of windows.yaml: containers have GPUs according to the ConfigMap.
func (m *rollout) install(t *testing.T) {
	m.configure(t, "replicas: 3\nruntimeFiles: {nvidia: {remove: ['NVAPI*.dll']}}\n")
	p := m.podOf("one", oldVersion, m.installed)
	p.setUp(t)
	m.mustHaveShim(t, oldVersion)
	m.mustRestart(t, 1)
	// It needs no flags for paths.
	out, err := m.Program(hostProcesses+`\one-setup\dxctl.exe`, "capabilities", "--output", "json")
	testutil.NoError(t, err)
	paths := bed.ShimPaths(t, out)
	for _, handler := range []string{"default", "runhcs-wcow-process"} {
		if paths[handler] != m.Shim() {
			t.Errorf("containerd has loaded %v, want %s for %s", paths, m.Shim(), handler)
		}
	}
	p.mustAdvertise(t)

	m.OpenRecorder(t)
	m.pod = m.SandboxBy(t, "manifests-pod")
	m.AllocatedBy(t, m.pod, firstID, m.Record(t, bed.Display, m.GPUs[0].Replica(0)))
	m.MustHaveFiles(t, firstID, m.GPUs[:1], slices.DeleteFunc(bed.FilesOf(m.GPUs[0]), func(f bed.Mapped) bool { return strings.HasSuffix(f.HostPath, "nvapi64.dll") }))
}

// mustHaveShim fails the test unless the shim is that of the image.
func (m *rollout) mustHaveShim(t *testing.T, version string) {
	t.Helper()
	if !bytes.Equal(bed.ReadFile(t, m.Shim()), bed.ReadFile(t, m.Executable(version)+`\`+bed.DirectxShim)) {
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

// mustAdvertise runs the pod's advertiser up to the kubelet's socket.
func (p *pod) mustAdvertise(t *testing.T) {
	t.Helper()
	b := p.advertiser(t)
	defer b.Kill()
	for _, g := range p.GPUs {
		if line := fmt.Sprintf(`msg="GPU is advertised" gpu=%q`, g.LocationPath); !strings.Contains(b.Log(), line) {
			t.Errorf("the advertiser does not log %s", line)
		}
	}
	if !strings.Contains(b.Log(), " replicas=3 resource="+bed.Display) {
		t.Error("the advertiser does not offer the replicas of the ConfigMap")
	}
	c := p.container(t, "advertiser")
	for path, status := range map[string]int{c.LivenessProbe.HTTPGet.Path: http.StatusOK, c.ReadinessProbe.HTTPGet.Path: http.StatusServiceUnavailable} {
		if problem := testutil.Answers(t, "http://"+p.address+path, status); problem != "" {
			t.Errorf("the advertiser's %s: %s", path, problem)
		}
	}
}

// installAgain starts the pod again, which changes nothing.
func (m *rollout) installAgain(t *testing.T) {
	config, before := m.ContainerdConfig(t), m.listing(t)
	output := m.podOf("two", oldVersion, m.installed).setUp(t)
	m.mustRestart(t, 1)
	if !strings.Contains(output, "is up to date") || !bytes.Equal(config, m.ContainerdConfig(t)) {
		t.Errorf("the shim or containerd's configuration was rewritten: %s", output)
	}
	if diff := cmp.Diff(before, m.listing(t)); diff != "" {
		t.Errorf("the files on the node (-before +after):\n%s", diff)
	}
}

// listing returns the files and directories on the node, without those of pods, of
// containerd's data and of the suite.
func (m *rollout) listing(t *testing.T) map[string]bool {
	t.Helper()
	others := []string{hostProcesses, bed.UsualData, m.Path("launcher"), m.Path("spec-"), m.Path("layer-"), m.Path("base"), m.Path("containerd.log"), `C:\hcs`, `C:\users`}
	found := map[string]bool{}
	err := filepath.WalkDir(`C:\`, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil // It was removed.
		case err != nil:
			return err
		case !slices.ContainsFunc(others, func(other string) bool { return strings.HasPrefix(path, other) }):
			found[path] = true
		case entry.IsDir():
			return fs.SkipDir
		}
		return nil
	})
	testutil.NoError(t, err)
	return found
}

// reconfigure changes the ConfigMap while the pod runs, which applies to the next container.
func (m *rollout) reconfigure(t *testing.T) {
	token := m.Record(t, bed.Display, m.GPUs[1].Replica(0))
	m.closeRecorder(t)
	b := m.podOf("three", oldVersion, m.installed).advertiser(t)
	m.configure(t, "assignmentMode: class-guid\n")
	until(t, b, "The configuration has changed and is in force")
	m.AllocatedBy(t, m.pod, secondID, token)
	m.MustHaveClass(t, secondID, bed.FilesOf(m.GPUs[1]))
	m.DeleteIn(t, bed.CRINamespace, secondID)
	// An invalid one changes nothing.
	in := m.policy(t)
	m.configure(t, "assignmentMode: sometimes\n")
	until(t, b, "Cannot use the configuration")
	if now := m.policy(t); now != in {
		t.Errorf("after an invalid ConfigMap the node policy is\n%s\nand was\n%s", now, in)
	}
	m.configure(t, "")
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
	return string(bed.ReadFile(t, m.StateDir+`\policy.json`))
}

// closeRecorder leaves the records to the advertiser.
func (m *rollout) closeRecorder(t *testing.T) {
	t.Helper()
	testutil.NoError(t, m.Recorder.Close())
}

// upgrade installs a newer image while containers run and one is starting.
func (m *rollout) upgrade(t *testing.T) {
	release, ended := m.StartHanging(t.Context(), t, "before", thirdID, "1")
	m.podOf("four", newVersion, m.installed).setUp(t)
	m.mustHaveShim(t, newVersion)
	release()
	if err := <-ended; err != nil {
		t.Errorf("the container that was starting: %v", err)
	} else {
		m.MustHave(t, thirdID, m.GPUs[1])
	}
	m.mustRestart(t, 1)
	id := "manifests-fourth"
	m.AllocatedBy(t, m.pod, id, m.Record(t, bed.Display, m.GPUs[0].Replica(1)))
	m.MustHave(t, id, m.GPUs[0])
	m.DeleteIn(t, bed.CRINamespace, id)
}

// uninstall replaces the pods by those of restore-windows.yaml. Containers continue with
// the real shim.
func (m *rollout) uninstall(t *testing.T) {
	m.closeRecorder(t)
	p := m.podOf("five", newVersion, object[appsv1.DaemonSet](t, "restore-windows.yaml", "DaemonSet"))
	output := ""
	for _, c := range p.spec.InitContainers {
		stdout, stderr := p.Exec(t, 0, p.command(t, c))
		output += stdout + stderr
	}
	m.mustRestart(t, 3)
	for _, id := range []string{m.pod.Sandbox, firstID, thirdID} {
		if !strings.Contains(output, "/"+id+" over to "+m.Path(bed.RunhcsShim)) {
			t.Errorf("uninstall does not report that %s is handed over:\n%s", id, output)
		}
	}
	b := p.start(t, "done", "waiting for a signal")
	if text := b.Log(); !strings.Contains(text, "there is nothing to remove") {
		t.Errorf("the last container removed something: %s", text)
	}
	m.mustRestart(t, 3)
	b.Kill()

	for namespace, ids := range map[string][]string{bed.CRINamespace: {m.pod.Sandbox, firstID}, "default": {plainID, thirdID}} {
		tasks := m.Tasks(t, namespace)
		for _, id := range ids {
			if tasks[id] != "RUNNING" || m.Created(t, id) != 1 {
				t.Errorf("task %s is %q and was created %d times, want RUNNING, once", id, tasks[id], m.Created(t, id))
			}
		}
	}
	m.MustRun(t, bed.Runhcs, lateID, m.Visible(t, lateID, "all"))
	if devices := m.Document(t, lateID).AssignedDevices; len(devices) > 0 {
		t.Errorf("AssignedDevices of %s are %v, want none", lateID, devices)
	}
	for _, c := range [][2]string{{bed.CRINamespace, firstID}, {bed.CRINamespace, m.pod.Sandbox}, {"default", thirdID}, {"default", plainID}, {"default", lateID}} {
		m.DeleteIn(t, c[0], c[1])
	}
}
