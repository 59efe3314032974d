//go:build chart && unix

// Package deployments has the Helm chart and the manifests that are rendered from it.
// Its tests check rendered objects against the programs: those of the committed manifests
// and of testdata/values.
package deployments

import (
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// monitor has the fields that the chart uses of the Prometheus operator's kinds. TestPromtool reads the groups of rules.
type monitor struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Selector            metav1.LabelSelector
		PodMetricsEndpoints []struct {
			Port, Interval string
			Relabelings    []struct {
				SourceLabels []string
				TargetLabel  string
			}
		}
		Groups []any
	} `json:"spec"`
}

// decode returns the objects of a text with several documents. It refuses unknown fields
// and kinds other than these.
func decode(text []byte) (found []any, err error) {
	for document := range strings.SplitSeq("\n"+string(text), "\n---\n") {
		if strings.TrimSpace(document) == "" {
			continue
		}
		var kind struct {
			APIVersion string `json:"apiVersion"`
			Kind       string
		}
		if err := yaml.Unmarshal([]byte(document), &kind); err != nil {
			return nil, err
		}
		name := kind.APIVersion + " " + kind.Kind
		object, ok := map[string]any{
			"monitoring.coreos.com/v1 PodMonitor":             &monitor{},
			"monitoring.coreos.com/v1 PrometheusRule":         &monitor{},
			"apps/v1 DaemonSet":                               &appsv1.DaemonSet{},
			"batch/v1 Job":                                    &batchv1.Job{},
			"v1 ConfigMap":                                    &corev1.ConfigMap{},
			"v1 Namespace":                                    &corev1.Namespace{},
			"v1 Pod":                                          &corev1.Pod{},
			"v1 Service":                                      &corev1.Service{},
			"v1 ServiceAccount":                               &corev1.ServiceAccount{},
			"networking.k8s.io/v1 NetworkPolicy":              &networkingv1.NetworkPolicy{},
			"rbac.authorization.k8s.io/v1 ClusterRole":        &rbacv1.ClusterRole{},
			"rbac.authorization.k8s.io/v1 ClusterRoleBinding": &rbacv1.ClusterRoleBinding{},
			"admissionregistration.k8s.io/v1 ValidatingAdmissionPolicy":        &admissionv1.ValidatingAdmissionPolicy{},
			"admissionregistration.k8s.io/v1 ValidatingAdmissionPolicyBinding": &admissionv1.ValidatingAdmissionPolicyBinding{},
		}[name]
		if !ok {
			return nil, fmt.Errorf("unexpected kind %q: %s", name, document)
		}
		if err := yaml.UnmarshalStrict([]byte(document), object); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		found = append(found, object)
	}
	return found, nil
}

// object is one document of a file.
type object struct {
	file string // such as manifests/linux.yaml, or the name of a file of testdata/values
	any
}

func objects(t *testing.T) (found []object) {
	t.Helper()
	texts := renderValues(t)
	files, err := filepath.Glob("manifests/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("manifests: %v, %v", files, err)
	}
	for _, file := range files {
		if texts[file], err = os.ReadFile(file); err != nil {
			t.Fatal(err)
		}
	}
	delete(texts, "manifests/kustomization.yaml")
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

// set is a DaemonSet.
type set struct {
	*appsv1.DaemonSet
	file string
}

func sets(t *testing.T) (found []set) {
	t.Helper()
	for _, o := range objects(t) {
		if daemonSet, ok := o.any.(*appsv1.DaemonSet); ok {
			found = append(found, set{daemonSet, o.file})
		}
	}
	return found
}

func (s set) pod() corev1.PodSpec { return s.Spec.Template.Spec }
func (s set) windows() bool       { return s.pod().NodeSelector["kubernetes.io/os"] == "windows" }
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

// volume is the place of Windows volumes and programs in commands and arguments.
const volume = `%CONTAINER_SANDBOX_MOUNT_POINT%\`

// The programs accept their arguments, and the files in the ConfigMaps.
func TestProgramsAccept(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	build := exec.Command("go", "build", "-buildvcs=false", "-o", dir+"/",
		"github.com/directx-nri/directx-nri/cmd/dxctl", "github.com/directx-nri/directx-nri/cmd/directx-advertiser",
		"github.com/directx-nri/directx-nri/cmd/directx-labeler", "github.com/directx-nri/directx-nri/cmd/directx-nri")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
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
			if len(c.Env) > 0 && c.Name != "labeler" || len(c.EnvFrom) > 0 {
				t.Errorf("%s: %s: environment variables %v", s, c.Name, c.Env)
			}
			for _, arg := range c.Args {
				// On Windows Server 2022, cmd.exe interprets a HostProcess container's command
				// line (hcsshim, internal/jobcontainers/jobcontainer.go).
				if s.windows() && strings.ContainsAny(strings.Replace(arg, volume, "", 1), `&|<>^%"`) {
					t.Errorf("%s: %s: cmd.exe changes %s", s, c.Name, arg)
				}
			}
			// Flags are parsed before the help is printed.
			run(s.String()+": "+c.Name, program, append(c.Args, "--help")...)
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
	for _, o := range objects(t) {
		m, ok := o.any.(*corev1.ConfigMap)
		if !ok {
			continue
		}
		for key, text := range m.Data {
			switch where := o.file + ": " + m.Name + ": " + key; key {
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
		"nri state", "nri run",
		"advertiser state", "advertiser device-plugins", "advertiser features", "advertiser labels",
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
			case v.Projected != nil:
				volumes[v.Name] = "/var/run/secrets/kubernetes.io/serviceaccount"
			case v.EmptyDir != nil:
				volumes[v.Name] = "/directx-nri-" + v.Name
			case v.HostPath == nil || v.HostPath.Type == nil || v.HostPath.Path == "/" || s.windows():
				t.Errorf("%s: volume %s is not a typed hostPath of a directory of a Linux node", s, v.Name)
			default:
				volumes[v.Name] = v.HostPath.Path
				if strings.HasPrefix(v.Name, "host-") {
					volumes[v.Name] = "/host" + v.HostPath.Path
				}
			}
		}
		// The node's own directory is mounted only if the advertiser reads files there.
		nodeFiles := !s.windows() && !slices.Contains([]string{"manifests/linux.yaml", "linux-discover.yaml", "linux-other.yaml", "values.yaml"}, s.file)
		if got := volumes["node-settings"] != ""; got != nodeFiles {
			t.Errorf("%s: it has the node's own directory: %v", s, got)
		}
		used := map[string]bool{}
		discovers := slices.ContainsFunc(s.containers(), func(c corev1.Container) bool {
			return !s.windows() && c.SecurityContext.Privileged != nil && *c.SecurityContext.Privileged
		})
		for _, c := range s.containers() {
			at := map[string]bool{}
			for _, mount := range c.VolumeMounts {
				used[mount.Name] = true
				if mount.MountPath != volumes[mount.Name] || at[mount.MountPath] {
					t.Errorf("%s: %s: volume %s is mounted at %s, want %s", s, c.Name, mount.Name, mount.MountPath, volumes[mount.Name])
				}
				at[mount.MountPath] = true
				if want := !slices.Contains(writable, c.Name+" "+mount.Name); mount.ReadOnly != want {
					t.Errorf("%s: %s: volume %s: read-only is %v", s, c.Name, mount.Name, mount.ReadOnly)
				}
				// Otherwise volumes that the node unmounts stay mounted in these pods. WSL 2 has no
				// shared mounts.
				needs := strings.HasPrefix(mount.Name, "host-") && !discovers
				if propagates := mount.MountPropagation != nil && *mount.MountPropagation == corev1.MountPropagationHostToContainer; propagates != needs {
					t.Errorf("%s: %s: volume %s: mount propagation is %v", s, c.Name, mount.Name, propagates)
				}
			}
			for name, file := range map[string]string{"config": "config/config.yaml", "inventory": "config/inventory.yaml"} {
				want := "/directx-nri-" + file
				if s.windows() {
					want = `C:` + strings.ReplaceAll(want, "/", `\`)
				}
				// Windows Server 2019 has no mounts: hcsshim, internal/jobcontainers/mounts.go.
				if s.file == "server2019.yaml" {
					want = strings.TrimSuffix(volume, `\`) + strings.TrimPrefix(want, "C:")
				}
				if value := flag(c, name); value != "" && (value != want || !at["/directx-nri-"+path.Dir(file)]) {
					t.Errorf("%s: --%s=%s is not in a mounted directory", s, name, value)
				}
			}
			hasHost := slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return strings.HasPrefix(m.Name, "host-") })
			if (flag(c, "host-root") == "/host") != hasHost {
				t.Errorf("%s: %s: --host-root does not match the volumes", s, c.Name)
			}
			for _, name := range []string{"nri-socket", "pod-resources-socket", "cri-socket"} {
				if socket := flag(c, name); socket != "" && !s.windows() && !at[path.Dir(socket)] {
					t.Errorf("%s: %s: %s is not mounted", s, c.Name, socket)
				}
			}
		}
		if len(used) != len(volumes) {
			t.Errorf("%s: volumes %v, used %v", s, volumes, used)
		}
	}
}

// Pods have no access to the cluster, the labeler excepted, and no more rights on the node than they need.
func TestPods(t *testing.T) {
	t.Parallel()
	selectors := map[string]*metav1.LabelSelector{}
	for _, s := range sets(t) {
		pod := s.pod()
		if s.Namespace != "directx-nri" || s.file != "linux-other.yaml" && (pod.PriorityClassName != "system-node-critical" || len(pod.Tolerations) == 0) {
			t.Errorf("%s: namespace %s, priority class %s, tolerations %v", s, s.Namespace, pod.PriorityClassName, pod.Tolerations)
		}
		// It cannot be changed, so it is the same for all values.
		if first := selectors[s.Name]; first != nil && !reflect.DeepEqual(first, s.Spec.Selector) {
			t.Errorf("%s has another selector than in other files", s)
		}
		selectors[s.Name] = s.Spec.Selector
		want := corev1.PodSpec{
			AutomountServiceAccountToken: new(false), EnableServiceLinks: new(false), HostNetwork: s.windows(),
		}
		if s.windows() && s.file == "labels.yaml" {
			want.ServiceAccountName = "directx-nri-labeler"
		}
		if s.windows() {
			want.SecurityContext = &corev1.PodSecurityContext{WindowsOptions: &corev1.WindowsSecurityContextOptions{HostProcess: new(true), RunAsUserName: new(`NT AUTHORITY\SYSTEM`)}}
		}
		others := cmpopts.IgnoreFields(corev1.PodSpec{}, "InitContainers", "Containers", "Volumes", "NodeSelector", "Affinity", "Tolerations", "PriorityClassName", "ImagePullSecrets")
		if diff := cmp.Diff(want, pod, others); diff != "" {
			t.Errorf("%s (-want +got): %s", s, diff)
		}
		for _, c := range s.containers() {
			checkContainer(t, s, c)
		}
	}
}

func checkContainer(t *testing.T, s set, c corev1.Container) {
	t.Helper()
	if c.Resources.Requests == nil || c.Resources.Limits.Memory().IsZero() {
		t.Errorf("%s: %s has no limits", s, c.Name)
	}
	// The kustomization replaces this image.
	if strings.HasPrefix(s.file, "manifests/") && !strings.HasPrefix(c.Image, "directx-nri:") {
		t.Errorf("%s: %s: image %s", s, c.Name, c.Image)
	}
	var rights *corev1.SecurityContext
	if !s.windows() {
		rights = &corev1.SecurityContext{
			RunAsUser: new(int64(0)), AllowPrivilegeEscalation: new(false), ReadOnlyRootFilesystem: new(true),
			Capabilities:   &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		}
		if c.Name == "advertiser" && s.file == "linux-discover.yaml" && !strings.HasSuffix(s.Name, "described") {
			// It asks the driver.
			rights = &corev1.SecurityContext{RunAsUser: new(int64(0)), ReadOnlyRootFilesystem: new(true), Privileged: new(true)}
		}
	}
	if diff := cmp.Diff(rights, c.SecurityContext); diff != "" {
		t.Errorf("%s: %s: security context (-want +got): %s", s, c.Name, diff)
	}
	// On a node's network, health is served at a local address unless metrics are enabled.
	host := ""
	if s.windows() && s.file != "metrics.yaml" {
		host = "127.0.0.1"
	}
	endpoint := func(p *corev1.Probe) string {
		if p == nil {
			return ""
		}
		return p.HTTPGet.Host + ":" + p.HTTPGet.Port.StrVal + p.HTTPGet.Path
	}
	want, got := [3]string{}, [3]string{flag(c, "metrics-address"), endpoint(c.LivenessProbe), endpoint(c.ReadinessProbe)}
	switch c.Name {
	case "nri": // The advertiser's readiness includes the plugin's.
		want = [3]string{fmt.Sprintf(":%d", c.Ports[0].ContainerPort), ":plugin-metrics/healthz", ""}
	case "advertiser":
		want = [3]string{fmt.Sprintf("%s:%d", host, c.Ports[0].ContainerPort), host + ":metrics/healthz", host + ":metrics/readyz"}
	}
	if got != want {
		t.Errorf("%s: %s: address and probes are %q, want %q", s, c.Name, got, want)
	}
}
