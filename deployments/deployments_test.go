//go:build unix

// Package deployments has the Helm chart and the manifests that are rendered from it.
// Its tests check rendered objects against the programs: without a build tag those of the
// committed manifests, with the tag chart also those of testdata/values.
package deployments

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// podMonitor has the fields that the chart uses of the Prometheus operator's kind.
type podMonitor struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Selector            metav1.LabelSelector              `json:"selector"`
		PodMetricsEndpoints []struct{ Port, Interval string } `json:"podMetricsEndpoints"`
	} `json:"spec"`
}

// decode returns the objects of a text with several documents. It refuses unknown fields
// and kinds other than these; there is none of RBAC.
func decode(text []byte) ([]any, error) {
	kinds := map[string]func() any{
		"apps/v1 DaemonSet":                   func() any { return new(appsv1.DaemonSet) },
		"v1 ConfigMap":                        func() any { return new(corev1.ConfigMap) },
		"v1 Namespace":                        func() any { return new(corev1.Namespace) },
		"v1 Service":                          func() any { return new(corev1.Service) },
		"node.k8s.io/v1 RuntimeClass":         func() any { return new(nodev1.RuntimeClass) },
		"networking.k8s.io/v1 NetworkPolicy":  func() any { return new(networkingv1.NetworkPolicy) },
		"monitoring.coreos.com/v1 PodMonitor": func() any { return new(podMonitor) },
	}
	var found []any
	reader := utilyaml.NewDocumentDecoder(io.NopCloser(bytes.NewReader(text)))
	for {
		document := make([]byte, len(text)+1)
		n, err := reader.Read(document)
		if errors.Is(err, io.EOF) {
			return found, nil
		}
		if err != nil {
			return nil, err
		}
		var kind metav1.TypeMeta
		if err := yaml.Unmarshal(document[:n], &kind); err != nil {
			return nil, err
		}
		name := kind.APIVersion + " " + kind.Kind
		create, ok := kinds[name]
		if !ok {
			return nil, fmt.Errorf("unexpected kind %q: %s", name, document[:n])
		}
		object := create()
		if err := yaml.UnmarshalStrict(document[:n], object); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		found = append(found, object)
	}
}

// object is one document of a file.
type object struct {
	file string // such as manifests/linux.yaml, or the name of a file of testdata/values
	any
}

func objects(t *testing.T) []object {
	t.Helper()
	texts := map[string][]byte{}
	files, err := filepath.Glob("manifests/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("manifests: %v, %v", files, err)
	}
	for _, file := range files {
		if filepath.Base(file) == "kustomization.yaml" {
			continue
		}
		if texts[file], err = os.ReadFile(file); err != nil {
			t.Fatal(err)
		}
	}
	maps.Copy(texts, renderValues(t))
	var found []object
	for file, text := range texts {
		decoded, err := decode(text)
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		for _, o := range decoded {
			found = append(found, object{file, o})
		}
	}
	return found
}

// ofType returns the objects of one type, with their files.
func ofType[T any](all []object) map[*T]string {
	found := map[*T]string{}
	for _, o := range all {
		if typed, ok := o.any.(*T); ok {
			found[typed] = o.file
		}
	}
	return found
}

// set is a DaemonSet.
type set struct {
	*appsv1.DaemonSet
	file string
}

func sets(t *testing.T) []set {
	t.Helper()
	var found []set
	for daemonSet, file := range ofType[appsv1.DaemonSet](objects(t)) {
		found = append(found, set{daemonSet, file})
	}
	return found
}

func (s set) pod() corev1.PodSpec { return s.Spec.Template.Spec }
func (s set) windows() bool       { return s.pod().NodeSelector["kubernetes.io/os"] == "windows" }
func (s set) restores() bool      { return s.pod().Containers[0].Name == "done" }
func (s set) String() string      { return s.file + ": " + s.Name }

func (s set) containers() []corev1.Container {
	return slices.Concat(s.pod().InitContainers, s.pod().Containers)
}

// flag returns the value of a container's flag, or "".
func flag(c corev1.Container, name string) string {
	for _, arg := range c.Args {
		if value, ok := strings.CutPrefix(arg, "--"+name+"="); ok {
			return value
		}
	}
	return ""
}

// programs builds the programs of the image and returns their directory.
func programs(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	build := exec.Command("go", "build", "-buildvcs=false", "-o", dir+"/", "directx-nri/cmd/dxctl", "directx-nri/cmd/directx-advertiser", "directx-nri/cmd/directx-nri")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return dir
}

// volume is the place of Windows volumes and programs in commands and arguments.
const volume = `%CONTAINER_SANDBOX_MOUNT_POINT%\`

// The programs accept their arguments, and the files in the ConfigMaps.
func TestProgramsAccept(t *testing.T) {
	t.Parallel()
	dir := programs(t)
	ran := map[string]bool{}
	run := func(where, program string, args ...string) {
		line := program + " " + strings.Join(args, " ")
		if ran[line] {
			return
		}
		ran[line] = true
		out, err := exec.Command(filepath.Join(dir, program), args...).CombinedOutput()
		if err != nil {
			t.Errorf("%s: %s: %v: %s", where, line, err, out)
		}
		// With the name of no command, cobra prints the help of the parent.
		if help := slices.Index(args, "--help"); help >= 0 {
			words := slices.DeleteFunc(slices.Clone(args), func(arg string) bool { return strings.HasPrefix(arg, "-") })
			if usage := strings.Join(append([]string{program}, words...), " ") + " [flags]"; !strings.Contains(string(out), usage) {
				t.Errorf("%s: %s: the usage is not %s: %s", where, line, usage, out)
			}
		}
	}
	for _, s := range sets(t) {
		for _, c := range s.containers() {
			program := strings.TrimSuffix(path.Base(strings.ReplaceAll(strings.Join(c.Command, " "), `\`, "/")), ".exe")
			want := "/" + program
			if s.windows() {
				want = volume + program + ".exe"
			}
			if len(c.Command) != 1 || c.Command[0] != want {
				t.Errorf("%s: %s: command %q, want %q", s, c.Name, c.Command, want)
			}
			if len(c.Env) > 0 || len(c.EnvFrom) > 0 {
				t.Errorf("%s: %s: environment variables %v", s, c.Name, c.Env)
			}
			for _, arg := range c.Args {
				// On Windows Server 2022, cmd.exe interprets a HostProcess container's command
				// line (hcsshim, internal/jobcontainers/jobcontainer.go).
				if s.windows() && strings.ContainsAny(strings.Replace(arg, volume, "", 1), `&|<>^%"`) {
					t.Errorf("%s: %s: cmd.exe changes %s", s, c.Name, arg)
				}
			}
			// Flags are parsed before the help is printed. After -- there are more commands.
			for i, part := range strings.Split(strings.Join(c.Args, "\n"), "\n--\n") {
				args := append(strings.Split(part, "\n"), "--help")
				if i > 0 {
					args = append([]string{"runtime"}, args...)
				}
				run(s.String()+": "+c.Name, program, args...)
			}
		}
	}
	check := func(where, text string, args ...string) {
		file := filepath.Join(t.TempDir(), "file.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		run(where, "dxctl", append(args, file)...)
	}
	sample, err := filepath.Abs("inventory/linux-gpu-pv.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for m, file := range ofType[corev1.ConfigMap](objects(t)) {
		for key, text := range m.Data {
			switch where := file + ": " + m.Name + ": " + key; key {
			case "config.yaml":
				check(where, regexp.MustCompile(`(?m)^inventory: .*$`).ReplaceAllString(text, "inventory: "+sample), "config", "check")
			case "inventory.yaml":
				check(where, text, "devices", "--inventory")
			default:
				t.Errorf("%s is unexpected", where)
			}
		}
	}
	files, err := filepath.Glob("inventory/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		run(file, "dxctl", "devices", "--inventory", file)
	}
	run("sample", "dxctl", "config", "check", "config/windows.yaml")
}

// settings is the directory of the ConfigMap's files.
const settings = "/directx-nri-config"

// Each volume is mounted where the programs look for it, and read-only unless they write.
func TestVolumes(t *testing.T) {
	t.Parallel()
	writable := []string{
		"setup setup", "setup state", "setup shim", "setup containerd-config", "nri state", "nri run", "advertiser state", "advertiser device-plugins",
	}
	all := objects(t)
	for _, s := range sets(t) {
		volumes := map[string]string{}
		for _, v := range s.pod().Volumes {
			switch {
			case v.ConfigMap != nil:
				volumes[v.Name] = settings
				if v.ConfigMap.Name != s.Name || !slices.ContainsFunc(all, func(o object) bool {
					m, ok := o.any.(*corev1.ConfigMap)
					return ok && o.file == s.file && m.Name == s.Name
				}) {
					t.Errorf("%s: there is no ConfigMap %s", s, v.ConfigMap.Name)
				}
			case v.EmptyDir != nil:
				volumes[v.Name] = "/directx-nri-" + v.Name
			case v.HostPath == nil || v.HostPath.Type == nil || s.windows():
				t.Errorf("%s: volume %s is not a typed hostPath of a Linux node", s, v.Name)
			default:
				volumes[v.Name] = v.HostPath.Path
				if strings.HasPrefix(v.Name, "host-") {
					volumes[v.Name] = "/host" + v.HostPath.Path
				}
			}
		}
		used := map[string]bool{}
		for _, c := range s.containers() {
			at := map[string]bool{}
			for _, mount := range c.VolumeMounts {
				used[mount.Name] = true
				if mount.MountPath != volumes[mount.Name] || at[mount.MountPath] {
					t.Errorf("%s: %s: volume %s is mounted at %s, want %s", s, c.Name, mount.Name, mount.MountPath, volumes[mount.Name])
				}
				at[mount.MountPath] = true
				if want := !s.restores() && !slices.Contains(writable, c.Name+" "+mount.Name) || mount.Name == "runc-shim"; mount.ReadOnly != want {
					t.Errorf("%s: %s: volume %s: read-only is %v", s, c.Name, mount.Name, mount.ReadOnly)
				}
				// Otherwise volumes that the node unmounts stay mounted in these pods.
				needs := strings.HasPrefix(mount.Name, "host-") || s.restores() && !strings.HasSuffix(mount.Name, "shim")
				if propagates := mount.MountPropagation != nil && *mount.MountPropagation == corev1.MountPropagationHostToContainer; propagates != needs {
					t.Errorf("%s: %s: volume %s: mount propagation is %v", s, c.Name, mount.Name, propagates)
				}
			}
			for name, file := range map[string]string{"config": "config/config.yaml", "inventory": "config/inventory.yaml", "setup-file": "setup/report"} {
				want := "/directx-nri-" + file
				if s.windows() {
					want = `C:` + strings.ReplaceAll(want, "/", `\`)
				}
				// Windows Server 2019 has no mounts: hcsshim, internal/jobcontainers/mounts.go.
				if s.file == "server2019.yaml" {
					want = strings.TrimSuffix(volume, `\`) + strings.TrimPrefix(want, "C:")
				}
				if value := flag(c, name); !s.restores() && value != "" && (value != want || !at["/directx-nri-"+path.Dir(file)]) {
					t.Errorf("%s: --%s=%s is not in a mounted directory", s, name, value)
				}
			}
			hasHost := slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return strings.HasPrefix(m.Name, "host-") })
			if (flag(c, "host-root") == "/host") != hasHost {
				t.Errorf("%s: %s: --host-root does not match the volumes", s, c.Name)
			}
			for _, name := range []string{"nri-socket", "pod-resources-socket", "cri-socket"} {
				if socket := flag(c, name); socket != "" && !s.windows() && !s.restores() && !at[path.Dir(socket)] {
					t.Errorf("%s: %s: %s is not mounted", s, c.Name, socket)
				}
			}
		}
		if len(used) != len(volumes) {
			t.Errorf("%s: volumes %v, used %v", s, volumes, used)
		}
	}
}

// A node offers GPUs only after the steps that let it provide them, which are the last
// container's: the kubelet starts containers in their order.
func TestContainers(t *testing.T) {
	t.Parallel()
	const (
		windows = " | advertiser setup install configure"
		linux   = " | nri advertiser setup configure"
		shim    = " | nri advertiser setup install configure"
		restore = "unconfigure uninstall | done"
	)
	want := map[string][2]string{ // of Linux and Windows
		"manifests/linux.yaml": {linux}, "manifests/windows.yaml": {"", windows},
		"manifests/restore-linux.yaml": {restore}, "manifests/restore-windows.yaml": {"", restore},
		"kubelet.yaml": {" | advertiser", " | advertiser"}, "linux-k3s.yaml": {shim}, "linux-shim.yaml": {shim}, "linux-k3s-restore.yaml": {restore},
		"metrics.yaml": {linux, windows}, "nodefiles.yaml": {" | nri advertiser", " | advertiser setup install"}, "pools.yaml": {linux, windows},
		"restore.yaml": {restore, restore}, "runtimeclass.yaml": {shim, windows}, "server2019.yaml": {"", windows},
		"values.yaml": {linux},
	}
	names := func(list []corev1.Container) string {
		var names []string
		for _, c := range list {
			names = append(names, c.Name)
			for i, arg := range c.Args[:max(0, len(c.Args)-1)] {
				if arg == "--" {
					names = append(names, c.Args[i+1])
				}
			}
		}
		return strings.Join(names, " ")
	}
	for _, s := range sets(t) {
		system := 0
		if s.windows() {
			system = 1
		}
		if got := names(s.pod().InitContainers) + " | " + names(s.pod().Containers); got != want[s.file][system] {
			t.Errorf("%s: containers %q, want %q", s, got, want[s.file][system])
		}
		for _, c := range s.containers() {
			switch {
			case c.Name == "advertiser":
				shim, waits := flag(c, "served-by") == "shim", flag(c, "setup-file") != ""
				if shim != (s.windows() && s.file != "kubelet.yaml") || waits != strings.Contains(want[s.file][system], "setup") {
					t.Errorf("%s: %s: arguments %q", s, c.Name, c.Args)
				}
			case c.Name == "setup" && flag(c, "setup-file") == "", c.Name == "setup" && slices.Contains(c.Args, "configure") && !slices.Contains(c.Args, "--restart"), c.Name == "unconfigure" && s.windows() && !slices.Contains(c.Args, "--restart"):
				t.Errorf("%s: %s reports nothing, or does not restart containerd: %q", s, c.Name, c.Args)
			case s.file == "runtimeclass.yaml" && c.Name == "setup" && flag(c, "add-handler") != "gpu":
				t.Errorf("%s: %s adds no handler: %q", s, c.Name, c.Args)
			case c.Name == "done" && !slices.Contains(c.Args, "--hold"):
				t.Errorf("%s: %s does not wait: %q", s, c.Name, c.Args)
			}
		}
	}
}

func TestPods(t *testing.T) {
	t.Parallel()
	for _, s := range sets(t) {
		problem := func(format string, a ...any) { t.Errorf("%s: %s", s, fmt.Sprintf(format, a...)) }
		pod := s.pod()
		if s.Namespace != "directx-nri" || s.file != "linux-shim.yaml" && (pod.PriorityClassName != "system-node-critical" || len(pod.Tolerations) == 0) {
			problem("namespace %s, priority class %s, tolerations %v", s.Namespace, pod.PriorityClassName, pod.Tolerations)
		}
		if isTrue(pod.AutomountServiceAccountToken, true) || pod.ServiceAccountName != "" || isTrue(pod.EnableServiceLinks, true) {
			problem("it has access to the cluster, or environment variables of Services")
		}
		// The default of dxctl's --restart-timeout is 60 seconds.
		if grace := pod.TerminationGracePeriodSeconds; grace == nil || *grace <= 60 {
			problem("the grace period is too short to restore containerd's configuration")
		}
		hostProcess := pod.SecurityContext != nil && pod.SecurityContext.WindowsOptions != nil && isTrue(pod.SecurityContext.WindowsOptions.HostProcess, false)
		if hostProcess != s.windows() || pod.HostNetwork != s.windows() || pod.HostIPC || pod.NodeSelector["kubernetes.io/os"] == "" {
			problem("host process %v, host network %v, node selector %v", hostProcess, pod.HostNetwork, pod.NodeSelector)
		}
		names := map[string]bool{}
		signals := false
		for _, c := range s.containers() {
			if names[c.Name] {
				problem("two containers have the name %s", c.Name)
			}
			names[c.Name] = true
			if c.Resources.Requests == nil || c.Resources.Limits.Memory().IsZero() {
				problem("%s has no limits", c.Name)
			}
			signal := slices.Contains(c.Args, "--restart-mode=signal")
			signals = signals || signal
			if s.windows() {
				if c.SecurityContext != nil || signal {
					problem("%s: %+v %q", c.Name, c.SecurityContext, c.Args)
				}
				continue
			}
			want := &corev1.SecurityContext{
				RunAsUser: new(int64), AllowPrivilegeEscalation: new(bool), ReadOnlyRootFilesystem: new(bool),
				Capabilities:   &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			}
			*want.ReadOnlyRootFilesystem = true
			if signal {
				want.AppArmorProfile = &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeUnconfined}
			}
			if !reflect.DeepEqual(c.SecurityContext, want) {
				problem("%s: security context %+v, want %+v", c.Name, c.SecurityContext, want)
			}
		}
		if pod.HostPID != signals {
			problem("hostPID is %v, and signals are sent: %v", pod.HostPID, signals)
		}
	}
}

func isTrue(value *bool, otherwise bool) bool {
	if value == nil {
		return otherwise
	}
	return *value
}

// The probes use the address that the program serves health at. The advertiser's readiness
// includes the plugin's, and nodes without a GPU are ready without it. On a node's network it
// is a local one unless metrics are enabled.
func TestProbes(t *testing.T) {
	t.Parallel()
	for _, s := range sets(t) {
		for _, c := range s.containers() {
			address := flag(c, "metrics-address")
			if daemon := c.Name == "nri" || c.Name == "advertiser"; daemon != (address != "") || daemon != (c.LivenessProbe != nil) {
				t.Errorf("%s: %s: metrics address %q, probe %v", s, c.Name, address, c.LivenessProbe)
			}
			if address == "" {
				continue
			}
			host, port, _ := strings.Cut(address, ":")
			if local := s.windows() && s.file != "metrics.yaml"; (host == "127.0.0.1") != local {
				t.Errorf("%s: %s listens on %q", s, c.Name, host)
			}
			if len(c.Ports) != 1 || fmt.Sprint(c.Ports[0].ContainerPort) != port {
				t.Errorf("%s: %s: ports %v, want %s", s, c.Name, c.Ports, port)
				continue
			}
			for want, probe := range map[string]*corev1.Probe{"/healthz": c.LivenessProbe, "/readyz": c.ReadinessProbe} {
				if c.Name == "nri" && want == "/readyz" && probe == nil {
					continue
				}
				if probe == nil || probe.HTTPGet == nil || probe.HTTPGet.Path != want || probe.HTTPGet.Host != host || probe.HTTPGet.Port.StrVal != c.Ports[0].Name {
					t.Errorf("%s: %s: probe %+v, want %s on %q", s, c.Name, probe, want, host)
				}
			}
		}
	}
}

// A DaemonSet's selector matches its own pods only, and is the same for all values,
// because it cannot be changed.
func TestSelectors(t *testing.T) {
	t.Parallel()
	all := sets(t)
	for _, a := range all {
		selector, err := metav1.LabelSelectorAsSelector(a.Spec.Selector)
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range all {
			if want := a.Name == b.Name; a.file == b.file && selector.Matches(labels.Set(b.Spec.Template.Labels)) != want {
				t.Errorf("%s: the selector matches the pods of %s: %v", a, b.Name, !want)
			}
			if a.Name == b.Name && !reflect.DeepEqual(a.Spec.Selector, b.Spec.Selector) {
				t.Errorf("%s has another selector than %s", a, b)
			}
		}
	}
}

// The kustomization replaces the image of all manifests.
func TestKustomization(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("manifests/kustomization.yaml")
	if err != nil || !bytes.Contains(text, []byte("\n  - name: directx-nri\n")) {
		t.Errorf("%v: %s", err, text)
	}
	for _, s := range sets(t) {
		for _, c := range s.containers() {
			if strings.HasPrefix(s.file, "manifests/") && !strings.HasPrefix(c.Image, "directx-nri:") {
				t.Errorf("%s: %s: image %s", s, c.Name, c.Image)
			}
		}
	}
}
