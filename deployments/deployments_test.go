//go:build unix

// Package deployments has the manifests. Its test checks them against the
// programs.
package deployments

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"directx-nri/advertiser/resources"
	"directx-nri/discovery/inventory"
	"directx-nri/internal/config"
	"directx-nri/internal/paths"
)

// manifest is one object of a file, and its pod.
type manifest struct {
	file string
	meta metav1.ObjectMeta
	pod  *corev1.PodSpec // nil when it has none
	set  *appsv1.DaemonSet
}

// manifests reads all files strictly.
func manifests(t *testing.T) []manifest {
	t.Helper()
	var found []manifest
	err := filepath.WalkDir(".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(name) != ".yaml" || strings.HasPrefix(name, "inventory") || strings.HasPrefix(name, "config") {
			return err
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		for _, document := range bytes.Split(text, []byte("\n---\n")) {
			found = append(found, read(t, name, document))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func read(t *testing.T, file string, document []byte) manifest {
	t.Helper()
	var kind metav1.TypeMeta
	if err := yaml.Unmarshal(document, &kind); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	strict := func(into any) {
		if err := yaml.UnmarshalStrict(document, into); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
	switch kind.APIVersion + " " + kind.Kind {
	case "apps/v1 DaemonSet":
		var o appsv1.DaemonSet
		strict(&o)
		return manifest{file, o.ObjectMeta, &o.Spec.Template.Spec, &o}
	case "apps/v1 Deployment":
		var o appsv1.Deployment
		strict(&o)
		return manifest{file, o.ObjectMeta, &o.Spec.Template.Spec, nil}
	case "v1 ConfigMap":
		var o corev1.ConfigMap
		strict(&o)
		if _, err := config.Parse([]byte(o.Data["config.yaml"])); err != nil || len(o.Data) != 1 {
			t.Errorf("%s: %v", file, err)
		}
		return manifest{file, o.ObjectMeta, nil, nil}
	case "v1 Pod":
		var o corev1.Pod
		strict(&o)
		return manifest{file, o.ObjectMeta, &o.Spec, nil}
	case "v1 Namespace":
		var o corev1.Namespace
		strict(&o)
		return manifest{file, o.ObjectMeta, nil, nil}
	}
	t.Fatalf("%s: %s %s is not known here", file, kind.APIVersion, kind.Kind)
	return manifest{}
}

func (m manifest) containers() []corev1.Container {
	return slices.Concat(m.pod.InitContainers, m.pod.Containers)
}

// programs builds what the manifests run, and returns the folder.
func programs(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	build := exec.Command("go", "build", "-buildvcs=false", "-o", folder+"/", "directx-nri/cmd/dxctl", "directx-nri/cmd/directx-advertiser", "directx-nri/cmd/directx-nri")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return folder
}

// foreign are the programs that others make, by the base name of the command.
var foreign = []string{"", "powershell.exe"}

// Every command is one of ours with arguments that it takes.
func TestCommands(t *testing.T) {
	t.Parallel()
	folder := programs(t)
	for _, m := range manifests(t) {
		if m.set == nil {
			continue
		}
		for _, c := range m.containers() {
			program := strings.TrimSuffix(path.Base(strings.ReplaceAll(strings.Join(c.Command, " "), `\`, "/")), ".exe")
			if slices.Contains(foreign, strings.Join(c.Command, " ")) {
				continue
			}
			want := "/" + program
			if m.windows() {
				want = `%CONTAINER_SANDBOX_MOUNT_POINT%\` + program + ".exe"
			}
			if len(c.Command) != 1 || c.Command[0] != want {
				t.Errorf("%s: %s: command %q, want %q", m.file, c.Name, c.Command, want)
			}
			// Flags are parsed before help is given.
			out, err := exec.Command(filepath.Join(folder, program), append(slices.Clone(c.Args), "--help")...).CombinedOutput()
			if err != nil {
				t.Errorf("%s: %s: %s %q: %v: %s", m.file, c.Name, program, c.Args, err, out)
			}
			words := []string{program}
			for _, arg := range c.Args {
				if strings.HasPrefix(arg, "-") {
					break
				}
				words = append(words, arg)
			}
			if usage := "\n  " + strings.Join(words, " ") + " [flags]\n"; !strings.Contains(string(out), usage) {
				t.Errorf("%s: %s: %q is no command: %s", m.file, c.Name, words, out)
			}
			for _, variable := range c.Env {
				if variable.Name != config.Variable {
					t.Errorf("%s: %s: nobody reads %s", m.file, c.Name, variable.Name)
				}
			}
		}
	}
}

func (m manifest) windows() bool { return m.pod.NodeSelector["kubernetes.io/os"] == "windows" }

// Every file and folder of the node is one that the programs use, and is where
// they look for it.
func TestNodePaths(t *testing.T) {
	t.Parallel()
	places := paths.OfThisSystem()
	// Where a folder itself is to be removed, what is above it is mounted.
	above := map[string][]string{"linux/restore.yaml": {path.Dir(places.State), path.Dir(places.Runtime), path.Dir(path.Dir(places.Config))}}
	known := []string{
		places.State, places.Runtime, places.DevicePlugins, path.Dir(places.PodResources), path.Dir(places.NRI), path.Dir(places.CRI),
		path.Dir(places.Config), places.ShimDir, path.Dir(places.ContainerdConfig),
	}
	for _, m := range manifests(t) {
		if m.pod == nil {
			continue
		}
		volumes := map[string]string{}
		for _, v := range m.pod.Volumes {
			if v.HostPath == nil || v.HostPath.Type == nil {
				t.Errorf("%s: volume %s is no typed folder of the node", m.file, v.Name)
				continue
			}
			volumes[v.Name] = v.HostPath.Path
			if p := v.HostPath.Path; p != "/" && !slices.Contains(known, p) && !slices.Contains(above[filepath.ToSlash(m.file)], p) {
				t.Errorf("%s: volume %s: none of our programs uses %s", m.file, v.Name, p)
			}
		}
		used := map[string]bool{}
		for _, c := range m.containers() {
			for _, mount := range c.VolumeMounts {
				used[mount.Name] = true
				want, ok := volumes[mount.Name]
				if want == "/" {
					want = "/host"
					if !mount.ReadOnly || !slices.Contains(c.Args, "--host-root="+want) {
						t.Errorf("%s: %s: the node's root has to be read-only, and known as %s", m.file, c.Name, want)
					}
				}
				if !ok || mount.MountPath != want {
					t.Errorf("%s: %s: volume %s is mounted at %s, want %s", m.file, c.Name, mount.Name, mount.MountPath, want)
				}
			}
			if m.windows() && len(c.VolumeMounts) > 0 {
				t.Errorf("%s: %s: a HostProcess container sees the node's files without mounts", m.file, c.Name)
			}
		}
		if len(used) != len(volumes) {
			t.Errorf("%s: volumes %v, used %v", m.file, volumes, used)
		}
	}
}

// The inventory is the one file that people put on a node, and all programs of a
// node must be told the same one.
func TestInventory(t *testing.T) {
	t.Parallel()
	for _, m := range manifests(t) {
		if m.set == nil {
			continue
		}
		want := path.Join(path.Dir(paths.OfThisSystem().Config), "inventory.yaml")
		if m.windows() {
			want = `C:\ProgramData\directx-nri\inventory.yaml`
		}
		for _, c := range m.containers() {
			args := strings.ReplaceAll(strings.Join(c.Args, " "), "--inventory=", "--inventory ")
			if _, value, ok := strings.Cut(args, "--inventory "); ok && strings.Fields(value)[0] != want {
				t.Errorf("%s: %s: %s, want %s", m.file, c.Name, args, want)
			}
		}
	}
	for _, file := range []string{"inventory/windows-g4dn.yaml", "inventory/linux-gpu-pv.yaml"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := inventory.Parse(file, text); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
}

// A node never advertises what it cannot honour, and is not left without its
// shim while containerd uses it.
func TestOrder(t *testing.T) {
	t.Parallel()
	for _, m := range manifests(t) {
		if m.set == nil {
			continue
		}
		var steps []string
		for _, c := range m.containers() {
			steps = append(steps, c.Name)
		}
		want := map[string]string{
			"windows/daemonset.yaml": "install configure advertiser", "windows/restore.yaml": "unconfigure uninstall done",
			"linux/daemonset.yaml": "nri advertiser", "linux/restore.yaml": "unconfigure uninstall done",
		}[filepath.ToSlash(m.file)]
		if got := strings.Join(steps, " "); got != want {
			t.Errorf("%s: %s, want %s", m.file, got, want)
		}
		if served := slices.Contains(m.pod.Containers[0].Args, "--served-by=shim"); m.file == filepath.Join("windows", "daemonset.yaml") && !served {
			t.Errorf("%s: the advertiser does not wait for the shim", m.file)
		}
	}
}

// Each DaemonSet is one that a node can carry and an administrator lets in.
func TestDaemonSets(t *testing.T) {
	t.Parallel()
	for _, m := range manifests(t) {
		if m.set == nil {
			continue
		}
		problem := func(what string) { t.Errorf("%s: %s", m.file, what) }
		if m.meta.Namespace != "directx-nri" || m.pod.PriorityClassName != "system-node-critical" || len(m.pod.Tolerations) == 0 {
			problem("namespace, priority or tolerations")
		}
		if m.pod.AutomountServiceAccountToken == nil || *m.pod.AutomountServiceAccountToken {
			problem("it has access to the cluster")
		}
		for key, value := range m.set.Spec.Selector.MatchLabels {
			if m.set.Spec.Template.Labels[key] != value {
				problem("the selector does not match the pods")
			}
		}
		hostProcess := m.pod.SecurityContext != nil && m.pod.SecurityContext.WindowsOptions != nil && *m.pod.SecurityContext.WindowsOptions.HostProcess
		if hostProcess != m.windows() || m.pod.HostNetwork != m.windows() {
			problem("HostProcess and host network go with Windows")
		}
		if m.windows() && m.pod.Affinity == nil {
			problem("it runs on Windows Server 2019 too")
		}
		for _, c := range m.containers() {
			if c.Resources.Requests == nil || c.Resources.Limits.Memory().IsZero() {
				problem(c.Name + " has no limits")
			}
			if !m.windows() && (c.SecurityContext == nil || c.SecurityContext.Privileged != nil || len(c.SecurityContext.Capabilities.Drop) == 0) {
				problem(c.Name + " can do more than it must")
			}
		}
	}
}

// The samples ask for our resources.
func TestSamples(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("config/windows.yaml")
	if err != nil {
		t.Fatal(err)
	}
	c, err := config.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	offered := resources.Names(c.Resources)
	asked := map[string]bool{}
	for _, m := range manifests(t) {
		if m.pod == nil || m.set != nil {
			continue
		}
		for _, c := range m.containers() {
			for name := range c.Resources.Limits {
				asked[string(name)] = true
				if !slices.Contains(offered, string(name)) {
					t.Errorf("%s: nobody offers %s", m.file, name)
				}
			}
		}
	}
	if len(asked) != len(offered) {
		t.Errorf("asked for: %v, offered %v", asked, offered)
	}
}

// The README names every file.
func TestReadme(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range manifests(t) {
		name := filepath.ToSlash(m.file)
		if strings.HasPrefix(name, "samples/") {
			name = "samples/*.yaml"
		}
		if !bytes.Contains(text, []byte("`"+name+"`")) {
			t.Error(errors.New(name + " is not in README.md"))
		}
	}
}
