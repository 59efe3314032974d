//go:build unix

// Package deployments has the Helm chart and what is rendered from it. Its tests
// check the rendered files against the programs: hermetic ones all that is
// committed, and ones with the build tag chart, which take helm, the chart itself.
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
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"directx-nri/discovery/inventory"
	"directx-nri/internal/config"
	"directx-nri/internal/paths"
)

// podMonitor is what of the Prometheus operator's kind we use.
type podMonitor struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Selector            metav1.LabelSelector `json:"selector"`
		PodMetricsEndpoints []struct {
			Port     string `json:"port"`
			Interval string `json:"interval"`
		} `json:"podMetricsEndpoints"`
	} `json:"spec"`
}

// kustomization is what of kustomize's kind we use.
type kustomization struct {
	metav1.TypeMeta `json:",inline"`
	Resources       []string `json:"resources"`
	Images          []struct {
		Name    string `json:"name"`
		NewName string `json:"newName"`
		NewTag  string `json:"newTag"`
	} `json:"images"`
}

// kinds are all the kinds of objects that there may be: none of RBAC.
func kinds() map[string]func() any {
	return map[string]func() any{
		"apps/v1 DaemonSet":                             func() any { return new(appsv1.DaemonSet) },
		"v1 ConfigMap":                                  func() any { return new(corev1.ConfigMap) },
		"v1 Namespace":                                  func() any { return new(corev1.Namespace) },
		"v1 Service":                                    func() any { return new(corev1.Service) },
		"node.k8s.io/v1 RuntimeClass":                   func() any { return new(nodev1.RuntimeClass) },
		"networking.k8s.io/v1 NetworkPolicy":            func() any { return new(networkingv1.NetworkPolicy) },
		"monitoring.coreos.com/v1 PodMonitor":           func() any { return new(podMonitor) },
		"kustomize.config.k8s.io/v1beta1 Kustomization": func() any { return new(kustomization) },
	}
}

// object is one document of a file.
type object struct {
	file string
	any
}

// objects reads all that is rendered, strictly.
func objects(t *testing.T) []object {
	t.Helper()
	var found []object
	for _, folder := range []string{"manifests", "helm/testdata/rendered"} {
		files, err := filepath.Glob(filepath.Join(folder, "*.yaml"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v, %v", folder, files, err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			of, err := decode(text)
			if err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			for _, o := range of {
				found = append(found, object{filepath.ToSlash(file), o})
			}
		}
	}
	return found
}

// decode returns the objects of a text with several documents.
func decode(text []byte) ([]any, error) {
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
		document = document[:n]
		var kind metav1.TypeMeta
		if err := yaml.Unmarshal(document, &kind); err != nil {
			return nil, err
		}
		if kind == (metav1.TypeMeta{}) {
			return nil, fmt.Errorf("a document without a kind: %s", document)
		}
		name := kind.APIVersion + " " + kind.Kind
		into, ok := kinds()[name]
		if !ok {
			return nil, fmt.Errorf("%s: nothing of this kind belongs here", name)
		}
		o := into()
		if err := yaml.UnmarshalStrict(document, o); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		found = append(found, o)
	}
}

// of returns the objects of one type.
func of[T any](all []object) map[*T]string {
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
	for _, o := range objects(t) {
		if s, ok := o.any.(*appsv1.DaemonSet); ok {
			found = append(found, set{s, o.file})
		}
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

// Every command is one of ours with arguments that it takes.
func TestCommands(t *testing.T) {
	t.Parallel()
	folder := programs(t)
	asked := map[string]bool{}
	for _, s := range sets(t) {
		for _, c := range s.containers() {
			program := strings.TrimSuffix(path.Base(strings.ReplaceAll(strings.Join(c.Command, " "), `\`, "/")), ".exe")
			want := "/" + program
			if s.windows() {
				want = `%CONTAINER_SANDBOX_MOUNT_POINT%\` + program + ".exe"
			}
			if len(c.Command) != 1 || c.Command[0] != want {
				t.Errorf("%s: %s: command %q, want %q", s, c.Name, c.Command, want)
			}
			// Nobody reads a variable here: what a Service brings could be taken
			// for one of our configuration's.
			if len(c.Env) > 0 || len(c.EnvFrom) > 0 {
				t.Errorf("%s: %s: variables %v", s, c.Name, c.Env)
			}
			if line := program + " " + strings.Join(c.Args, " "); asked[line] {
				continue
			} else {
				asked[line] = true
			}
			// Flags are parsed before help is given.
			out, err := exec.Command(filepath.Join(folder, program), append(slices.Clone(c.Args), "--help")...).CombinedOutput()
			if err != nil {
				t.Errorf("%s: %s: %s %q: %v: %s", s, c.Name, program, c.Args, err, out)
			}
			words := []string{program}
			for _, arg := range c.Args {
				if strings.HasPrefix(arg, "-") {
					break
				}
				words = append(words, arg)
			}
			if usage := "Usage:\n  " + strings.Join(words, " ") + " "; !strings.Contains(string(out), usage) || !strings.Contains(string(out), " [flags]\n") {
				t.Errorf("%s: %s: %q is no command: %s", s, c.Name, words, out)
			}
		}
	}
}

// On Windows Server 2022 a HostProcess container's command line goes through
// cmd.exe (hcsshim, internal/jobcontainers/jobcontainer.go), to which some
// characters mean something.
func TestWindowsArguments(t *testing.T) {
	t.Parallel()
	for _, s := range sets(t) {
		if !s.windows() {
			continue
		}
		for _, c := range s.containers() {
			for _, arg := range c.Args {
				if rest := strings.TrimPrefix(arg, `--from=%CONTAINER_SANDBOX_MOUNT_POINT%\`); strings.ContainsAny(rest, `&|<>^%"`) {
					t.Errorf("%s: %s: %s", s, c.Name, arg)
				}
			}
		}
	}
}

// Where the configuration of the cluster is mounted, and where programs see it.
const settings = "/directx-nri-config"

// Every file and folder of the node is one that the programs use, and is where
// they look for it.
func TestNodePaths(t *testing.T) {
	t.Parallel()
	places := paths.Default()
	known := []string{
		"/", places.State, places.Runtime, places.DevicePlugins, path.Dir(places.PodResources), path.Dir(places.NRI), path.Dir(places.CRI),
		path.Dir(places.Config), places.ShimDir, path.Dir(places.ContainerdConfig), "/usr/bin",
	}
	for _, s := range sets(t) {
		known := slices.Clone(known)
		if s.restores() {
			// Where a folder itself is to be removed, what is above it is mounted.
			known = append(known, path.Dir(places.State), path.Dir(places.Runtime), path.Dir(path.Dir(places.Config)))
		}
		if strings.Contains(s.file, "k3s") {
			known = append(known, named(s)...)
		}
		volumes := map[string]string{}
		for _, v := range s.pod().Volumes {
			switch {
			case v.ConfigMap != nil:
				volumes[v.Name] = settings
				if v.ConfigMap.Name != s.Name || s.restores() {
					t.Errorf("%s: the configuration of %s", s, v.ConfigMap.Name)
				}
			case v.HostPath == nil || v.HostPath.Type == nil || s.windows():
				t.Errorf("%s: volume %s is no typed folder of a Linux node", s, v.Name)
			default:
				volumes[v.Name] = v.HostPath.Path
				if !slices.Contains(known, v.HostPath.Path) {
					t.Errorf("%s: volume %s: none of our programs uses %s", s, v.Name, v.HostPath.Path)
				}
			}
		}
		used := map[string]bool{}
		for _, c := range s.containers() {
			for _, mount := range c.VolumeMounts {
				used[mount.Name] = true
				want, ok := volumes[mount.Name]
				if socket := mount.Name == "nri" || mount.Name == "containerd" && !s.restores(); socket && !mount.ReadOnly {
					t.Errorf("%s: %s: volume %s can be written, and one connects to what is in it", s, c.Name, mount.Name)
				}
				// Its pods stay, and the node's other volumes are below these folders.
				followed := mount.MountPropagation != nil && *mount.MountPropagation == corev1.MountPropagationHostToContainer
				if s.restores() && !strings.HasSuffix(mount.Name, "shim") && !followed {
					t.Errorf("%s: %s: what the node unmounts below %s stays mounted here", s, c.Name, mount.MountPath)
				}
				if want == "/" {
					want = "/host"
					if !mount.ReadOnly || !slices.Contains(c.Args, "--host-root="+want) {
						t.Errorf("%s: %s: the node's root has to be read-only, and known as %s", s, c.Name, want)
					}
				}
				if !ok || mount.MountPath != want {
					t.Errorf("%s: %s: volume %s is mounted at %s, want %s", s, c.Name, mount.Name, mount.MountPath, want)
				}
			}
			from := "--from=" + settings
			if s.windows() {
				from = `--from=%CONTAINER_SANDBOX_MOUNT_POINT%` + strings.ReplaceAll(settings, "/", `\`)
			}
			if c.Args[0] == "config" && (!slices.Contains(c.Args, from) || !slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == settings })) {
				t.Errorf("%s: %s: want %s of a volume: %q", s, c.Name, from, c.Args)
			}
		}
		if len(used) != len(volumes) {
			t.Errorf("%s: volumes %v, used %v", s, volumes, used)
		}
	}
}

// named returns the folders that a set's arguments name, and those of the files
// that they name.
func named(s set) []string {
	var found []string
	for _, c := range s.containers() {
		for _, arg := range c.Args {
			if flag, value, ok := strings.Cut(arg, "="); ok && strings.HasPrefix(value, "/") && flag != "--host-root" {
				found = append(found, value, path.Dir(value))
			}
		}
	}
	// PATH names the real shim's; a container's has its folder in the volume alone.
	return append(found, "/var/lib/rancher/k3s/data/current/bin")
}

// A node never advertises what it cannot honour, and is not left without its
// shim while containerd uses it. The configuration comes before the shim, whose
// installation reads it: what a newer chart has left on the node would stop it.
func TestOrder(t *testing.T) {
	t.Parallel()
	const (
		windows = "config install configure | advertiser config-watch"
		linux   = "config configure | nri advertiser config-watch"
		shim    = "config install configure | nri advertiser config-watch"
		restore = "unconfigure uninstall | done"
	)
	want := map[string]map[bool]string{ // by file, and whether it is Windows
		"manifests/windows.yaml": {true: windows}, "manifests/linux.yaml": {false: linux},
		"manifests/restore-windows.yaml": {true: restore}, "manifests/restore-linux.yaml": {false: restore},
		"kubelet.yaml":    {true: "config | advertiser config-watch", false: "config | advertiser config-watch"},
		"linux-k3s.yaml":  {false: shim},
		"linux-shim.yaml": {false: shim}, "linux-k3s-restore.yaml": {false: restore},
		"metrics.yaml": {true: windows, false: linux}, "pools.yaml": {true: windows, false: linux},
		"restore.yaml": {true: restore, false: restore}, "runtimeclass.yaml": {true: windows, false: shim},
		"server2019.yaml": {true: windows}, "unmanaged.yaml": {true: "install | advertiser", false: " | nri advertiser"},
	}
	for _, s := range sets(t) {
		names := func(list []corev1.Container) string {
			var of []string
			for _, c := range list {
				of = append(of, c.Name)
			}
			return strings.Join(of, " ")
		}
		got := names(s.pod().InitContainers) + " | " + names(s.pod().Containers)
		if want := want[strings.TrimPrefix(s.file, "helm/testdata/rendered/")][s.windows()]; got != want {
			t.Errorf("%s: %q, want %q", s, got, want)
		}
		for _, c := range s.containers() {
			switch {
			case c.Name == "advertiser":
				if served := slices.Contains(c.Args, "--served-by=shim"); served != (s.windows() && !strings.HasSuffix(s.file, "kubelet.yaml")) {
					t.Errorf("%s: %s: %q", s, c.Name, c.Args)
				}
			case c.Name == "configure" && !slices.Contains(c.Args, "--restart"), c.Name == "unconfigure" && s.windows() && !slices.Contains(c.Args, "--restart"):
				t.Errorf("%s: %s: containerd does not read its file again: %q", s, c.Name, c.Args)
			case c.Name == "done" && !slices.Contains(c.Args, "--hold"):
				t.Errorf("%s: %s ends: %q", s, c.Name, c.Args)
			}
		}
	}
}

// Each DaemonSet is one that a node can carry and an administrator lets in.
func TestDaemonSets(t *testing.T) {
	t.Parallel()
	for _, s := range sets(t) {
		problem := func(format string, a ...any) { t.Errorf("%s: %s", s, fmt.Sprintf(format, a...)) }
		pod := s.pod()
		special := strings.HasSuffix(s.file, "/linux-shim.yaml")
		if s.Namespace != "directx-nri" || !special && (pod.PriorityClassName != "system-node-critical" || len(pod.Tolerations) == 0) {
			problem("namespace, priority or tolerations")
		}
		if isTrue(pod.AutomountServiceAccountToken, true) || pod.ServiceAccountName != "" {
			problem("it has access to the cluster")
		}
		// dxctl's usual --restart-timeout, and some.
		if grace := pod.TerminationGracePeriodSeconds; grace == nil || *grace <= 60 {
			problem("containerd is left without its old configuration when a step is killed")
		}
		if isTrue(pod.EnableServiceLinks, true) {
			problem("variables of Services look like ours")
		}
		if pod.NodeSelector["kubernetes.io/os"] == "" {
			problem("it runs on every operating system")
		}
		hostProcess := pod.SecurityContext != nil && pod.SecurityContext.WindowsOptions != nil && isTrue(pod.SecurityContext.WindowsOptions.HostProcess, false)
		if hostProcess != s.windows() || pod.HostNetwork != s.windows() || pod.HostIPC {
			problem("HostProcess and host network go with Windows")
		}
		names := map[string]bool{}
		signals := false
		for _, c := range s.containers() {
			if names[c.Name] {
				problem("two containers are called %s", c.Name)
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
			root := int64(0)
			no, yes := false, true
			want := &corev1.SecurityContext{
				RunAsUser: &root, AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes,
				Capabilities:   &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			}
			if signal {
				want.AppArmorProfile = &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeUnconfined}
			}
			if !reflect.DeepEqual(c.SecurityContext, want) {
				problem("%s may do %+v, want %+v", c.Name, c.SecurityContext, want)
			}
		}
		if pod.HostPID != signals {
			problem("hostPID is %v, signals are sent: %v", pod.HostPID, signals)
		}
		selector, err := metav1.LabelSelectorAsSelector(s.Spec.Selector)
		if err != nil || !selector.Matches(labels.Set(s.Spec.Template.Labels)) {
			problem("the selector does not match the pods: %v", err)
		}
	}
}

func isTrue(value *bool, otherwise bool) bool {
	if value == nil {
		return otherwise
	}
	return *value
}

// The kubelet asks each daemon at the address that it serves health at, and
// nobody else can reach that one on a node's network unless it was asked for.
func TestProbes(t *testing.T) {
	t.Parallel()
	for _, s := range sets(t) {
		for _, c := range s.containers() {
			at := slices.IndexFunc(c.Args, func(arg string) bool { return strings.HasPrefix(arg, "--metrics-address=") })
			if at < 0 {
				if c.LivenessProbe != nil || c.Name == "nri" || c.Name == "advertiser" {
					t.Errorf("%s: %s is asked, and serves nothing", s, c.Name)
				}
				continue
			}
			host, port, _ := strings.Cut(strings.TrimPrefix(c.Args[at], "--metrics-address="), ":")
			if wantHost := s.windows() && !strings.HasSuffix(s.file, "/metrics.yaml"); (host == "127.0.0.1") != wantHost {
				t.Errorf("%s: %s listens on %q", s, c.Name, host)
			}
			if len(c.Ports) != 1 || fmt.Sprint(c.Ports[0].ContainerPort) != port {
				t.Errorf("%s: %s: ports %v, want %s", s, c.Name, c.Ports, port)
				continue
			}
			for want, probe := range map[string]*corev1.Probe{"/healthz": c.LivenessProbe, "/readyz": c.ReadinessProbe} {
				if probe == nil || probe.HTTPGet == nil || probe.HTTPGet.Path != want || probe.HTTPGet.Host != host || probe.HTTPGet.Port.StrVal != c.Ports[0].Name {
					t.Errorf("%s: %s: %+v, want %s of %s", s, c.Name, probe, want, host)
				}
			}
		}
	}
}

// A node is one DaemonSet's, or nobody's.
func TestNodes(t *testing.T) {
	t.Parallel()
	const pool = "eks.amazonaws.com/nodegroup"
	node := func(system, build, group string) labels.Set {
		l := labels.Set{"kubernetes.io/os": system}
		if build != "" {
			l["node.kubernetes.io/windows-build"] = build
		}
		if group != "" {
			l[pool], l["zone"] = group, "a"
		}
		return l
	}
	tests := []struct {
		file string
		node labels.Set
		want string
	}{
		{"manifests/windows.yaml", node("windows", "10.0.20348", ""), "directx-nri-windows"},
		{"manifests/windows.yaml", node("windows", "10.0.26100", ""), "directx-nri-windows"},
		{"manifests/windows.yaml", node("windows", "10.0.99999", ""), "directx-nri-windows"},
		{"manifests/windows.yaml", node("windows", "10.0.17763", ""), ""},
		{"manifests/windows.yaml", node("windows", "10.0.19042", ""), ""},
		{"manifests/windows.yaml", node("linux", "", ""), ""},
		{"manifests/restore-windows.yaml", node("windows", "10.0.17763", ""), "directx-nri-windows"},
		{"manifests/linux.yaml", node("linux", "", ""), "directx-nri-linux"},
		{"manifests/linux.yaml", node("windows", "10.0.20348", ""), ""},
		{"helm/testdata/rendered/server2019.yaml", node("windows", "10.0.17763", ""), "directx-nri-windows"},
		{"helm/testdata/rendered/server2019.yaml", node("windows", "10.0.18363", ""), ""},
		{"helm/testdata/rendered/pools.yaml", node("windows", "10.0.20348", "render-A"), "directx-nri-windows-render"},
		{"helm/testdata/rendered/pools.yaml", node("windows", "10.0.20348", "render-B"), "directx-nri-windows-render"},
		{"helm/testdata/rendered/pools.yaml", node("windows", "10.0.17763", "render-B"), ""},
		{"helm/testdata/rendered/pools.yaml", node("windows", "10.0.20348", "render"), "directx-nri-windows"},
		{"helm/testdata/rendered/pools.yaml", node("windows", "10.0.20348", "train"), "directx-nri-windows"},
		{"helm/testdata/rendered/pools.yaml", node("windows", "10.0.20348", "plain"), "directx-nri-windows-plain"},
		// Where the user's affinity fits nothing.
		{"helm/testdata/rendered/pools.yaml", node("windows", "10.0.20348", ""), ""},
		{"helm/testdata/rendered/pools.yaml", node("linux", "", "train"), "directx-nri-linux-train"},
		{"helm/testdata/rendered/pools.yaml", node("linux", "", "render-A"), "directx-nri-linux"},
		{"helm/testdata/rendered/pools.yaml", node("linux", "", ""), "directx-nri-linux"},
	}
	for _, test := range tests {
		var got []string
		for _, s := range sets(t) {
			if s.file == test.file && s.takes(t, test.node) {
				got = append(got, s.Name)
			}
		}
		if strings.Join(got, " ") != test.want {
			t.Errorf("%s: %v has %v, want %q", test.file, test.node, got, test.want)
		}
	}
}

// takes tells whether a set's pods are scheduled to a node with these labels. A
// term with fields of the node fits no node here.
func (s set) takes(t *testing.T, node labels.Set) bool {
	t.Helper()
	if !labels.SelectorFromSet(s.pod().NodeSelector).Matches(node) {
		return false
	}
	if s.pod().Affinity == nil {
		return true
	}
	return slices.ContainsFunc(s.pod().Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms, func(term corev1.NodeSelectorTerm) bool {
		var expressions []metav1.LabelSelectorRequirement
		for _, e := range term.MatchExpressions {
			expressions = append(expressions, metav1.LabelSelectorRequirement{Key: e.Key, Operator: metav1.LabelSelectorOperator(e.Operator), Values: e.Values})
		}
		selector, err := metav1.LabelSelectorAsSelector(&metav1.LabelSelector{MatchExpressions: expressions})
		if err != nil {
			t.Fatalf("%s: %v", s, err)
		}
		return selector.Matches(node) && len(term.MatchFields) == 0
	})
}

// No DaemonSet's selector takes another's pods.
func TestSelectors(t *testing.T) {
	t.Parallel()
	all := sets(t)
	for _, a := range all {
		selector, err := metav1.LabelSelectorAsSelector(a.Spec.Selector)
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range all {
			if a.file == b.file && a.Name != b.Name && selector.Matches(labels.Set(b.Spec.Template.Labels)) {
				t.Errorf("%s takes the pods of %s", a, b.Name)
			}
		}
	}
}

// A DaemonSet's selector cannot be changed, and so is the same whatever the
// values are, restore included.
func TestSelectorsStay(t *testing.T) {
	t.Parallel()
	seen := map[string]*metav1.LabelSelector{}
	for _, s := range sets(t) {
		if other, ok := seen[s.Name]; ok && !reflect.DeepEqual(other, s.Spec.Selector) {
			t.Errorf("%s: %v, elsewhere %v", s, s.Spec.Selector, other)
		}
		seen[s.Name] = s.Spec.Selector
	}
}

// What a ConfigMap has, the programs of its nodes can read, and only what is in
// a DaemonSet's pods is there.
func TestConfigMaps(t *testing.T) {
	t.Parallel()
	all := objects(t)
	for m, file := range of[corev1.ConfigMap](all) {
		text := m.Data["config.yaml"]
		inventoryText, described := m.Data["inventory.yaml"]
		if keys := slices.Sorted(maps.Keys(m.Data)); keys[0] != "config.yaml" || len(keys) > 2 {
			t.Errorf("%s: %s has %v", file, m.Name, keys)
		}
		place := "/etc/directx-nri/inventory.yaml"
		if m.Labels["app.kubernetes.io/component"] == "windows" {
			// This system's paths are others.
			text = strings.ReplaceAll(text, `C:\ProgramData\directx-nri\inventory.yaml`, place)
		}
		c, err := config.Parse([]byte(text))
		if err != nil {
			t.Errorf("%s: %s: %v", file, m.Name, err)
		}
		if described != (c.Inventory == place) {
			t.Errorf("%s: %s has an inventory: %v, and reads %q", file, m.Name, described, c.Inventory)
		}
		if described {
			if _, err := inventory.Parse("inventory.yaml", []byte(inventoryText)); err != nil {
				t.Errorf("%s: %s: %v", file, m.Name, err)
			}
		}
		used := false
		for s, of := range of[appsv1.DaemonSet](all) {
			used = used || of == file && s.Name == m.Name
		}
		if !used {
			t.Errorf("%s: nobody has the configuration %s", file, m.Name)
		}
	}
}

// What reads metrics finds ports that there are, and the policy lets it in.
func TestMetrics(t *testing.T) {
	t.Parallel()
	const file = "helm/testdata/rendered/metrics.yaml"
	ports := map[string]int32{}
	for _, s := range sets(t) {
		for _, c := range s.containers() {
			for _, port := range c.Ports {
				if s.file == file {
					ports[port.Name] = port.ContainerPort
				}
			}
		}
	}
	want := slices.Sorted(maps.Keys(ports))
	all := objects(t)
	for s, in := range of[corev1.Service](all) {
		var got []string
		for _, port := range s.Spec.Ports {
			got = append(got, port.TargetPort.StrVal)
			if ports[port.TargetPort.StrVal] != port.Port {
				t.Errorf("%s: %+v, want %v", in, port, ports)
			}
		}
		if in != file || !slices.Equal(slices.Sorted(slices.Values(got)), want) {
			t.Errorf("%s: Service %v, want %v", in, got, want)
		}
	}
	monitors := of[podMonitor](all)
	for m, in := range monitors {
		var got []string
		for _, e := range m.Spec.PodMetricsEndpoints {
			got = append(got, e.Port)
		}
		if in != file || !slices.Equal(slices.Sorted(slices.Values(got)), want) {
			t.Errorf("%s: PodMonitor %v, want %v", in, got, want)
		}
	}
	policies := of[networkingv1.NetworkPolicy](all)
	for p, in := range policies {
		var got []string
		for _, rule := range p.Spec.Ingress {
			for _, port := range rule.Ports {
				got = append(got, intstr.ValueOrDefault(port.Port, intstr.FromString("")).StrVal)
			}
		}
		if in != file {
			if len(got) > 0 || len(p.Spec.Egress) > 0 {
				t.Errorf("%s: it lets %v in", in, got)
			}
		} else if !slices.Equal(slices.Sorted(slices.Values(got)), want) {
			t.Errorf("%s: NetworkPolicy %v, want %v", in, got, want)
		}
	}
	if len(monitors) == 0 || len(policies) == 0 || len(want) != 2 {
		t.Errorf("%d PodMonitors, %d policies, ports %v", len(monitors), len(policies), want)
	}
}

// A RuntimeClass is of the handler that the nodes' containerd gets.
func TestRuntimeClass(t *testing.T) {
	t.Parallel()
	for class, file := range of[nodev1.RuntimeClass](objects(t)) {
		for _, s := range sets(t) {
			for _, c := range s.containers() {
				if s.file == file && c.Name == "configure" && !slices.Contains(c.Args, "--add-handler="+class.Handler) {
					t.Errorf("%s: %q, want the handler %s", s, c.Args, class.Handler)
				}
			}
		}
	}
}

// The manifests that can be applied all at once are those of the kustomization.
func TestKustomization(t *testing.T) {
	t.Parallel()
	for k, file := range of[kustomization](objects(t)) {
		for _, resource := range k.Resources {
			if _, err := os.Stat(filepath.Join(filepath.Dir(file), resource)); err != nil {
				t.Error(err)
			}
		}
		for _, s := range sets(t) {
			if !strings.HasPrefix(s.file, "manifests/") {
				continue
			}
			for _, c := range s.containers() {
				if name, _, _ := strings.Cut(c.Image, ":"); name != k.Images[0].Name {
					t.Errorf("%s: %s: image %s, which %s does not name", s, c.Name, c.Image, file)
				}
			}
		}
	}
}

// The samples of an inventory and a configuration can be read.
func TestSamples(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("inventory/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := inventory.Parse(file, text); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
	text, err := os.ReadFile("config/windows.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := config.Parse(text); err != nil {
		t.Error(err)
	}
}

// README.md names every manifest.
func TestReadme(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("manifests/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range append(files, "config/windows.yaml", "helm/directx-nri") {
		if !bytes.Contains(text, []byte("`"+filepath.ToSlash(name)+"`")) {
			t.Errorf("%s is not in README.md", name)
		}
	}
}

// The chart has new pods for each key that takes a restart, and for no other.
func TestRestartKeys(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("helm/directx-nri/templates/_helpers.tpl")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(text), "{{- $restart := pick $parsed ")
	list, _, _ := strings.Cut(rest, " -}}")
	if !ok {
		t.Fatal("the keys are not where they were")
	}
	got := strings.Fields(strings.ReplaceAll(list, `"`, ""))
	var want []string
	// The chart lets nobody set these.
	fixed := []string{"stateDir", "runtimeDir", "hostRoot", "metrics"}
	for _, s := range config.Settings() {
		key, _, _ := strings.Cut(s.Key, ".")
		if s.Restart && !slices.Contains(fixed, key) && !slices.Contains(want, key) {
			want = append(want, key)
		}
	}
	if slices.Sort(got); !slices.Equal(got, slices.Sorted(slices.Values(want))) {
		t.Errorf("%q, want %q", got, want)
	}
}
