package simulate

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// podTemplate is a pod with one container, to stand below "template:".
const podTemplate = `{spec: {containers: [{name: main, image: x}]}}`

func TestRead(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		text string
		want []string // kind namespace/name of each pod
	}{
		"a pod":                     {podText("a", ""), []string{"Pod default/a"}},
		"fields that do not matter": {podOf("{tolerations: [{key: x}], newInKubernetes: 1, containers: [{name: main, env: [{name: X, valueFrom: {fieldRef: {fieldPath: y}}}], securityContext: {runAsUser: 1, windowsOptions: {runAsUserName: x}}, livenessProbe: {exec: {command: [x]}}}]}"), []string{"Pod default/a"}},
		"a pod's namespace":         {strings.Replace(podText("a", ""), "name: a", "name: a, namespace: b", 1), []string{"Pod b/a"}},
		"a name of no pod's":        {strings.Replace(podText("a", ""), "name: a", "generateName: a-", 1), []string{"Pod default/a-1"}},
		"documents, comments":       {"# one\n---\n" + podText("a", "") + "\n---\n---\n# two\n---\n" + podText("b", ""), []string{"Pod default/a", "Pod default/b"}},
		"JSON":                      {`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"},"spec":{"containers":[{"name":"main"}]}}`, []string{"Pod default/a"}},
		"a list": {"apiVersion: v1\nkind: List\nitems:\n- " + oneLinePod("a") + "\n- {apiVersion: v1, kind: Service, metadata: {name: x}}\n",
			[]string{"Pod default/a"}},
		"Deployment":            {"{apiVersion: apps/v1, kind: Deployment, metadata: {name: d}, spec: {replicas: 2, template: " + podTemplate + "}}", []string{"Deployment default/d-1", "Deployment default/d-2"}},
		"Deployment of none":    {"{apiVersion: apps/v1, kind: Deployment, metadata: {name: d}, spec: {replicas: 0, template: " + podTemplate + "}}", nil},
		"ReplicaSet":            {"{apiVersion: apps/v1, kind: ReplicaSet, metadata: {name: r}, spec: {template: " + podTemplate + "}}", []string{"ReplicaSet default/r-1"}},
		"StatefulSet":           {"{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: s}, spec: {replicas: 2, template: " + podTemplate + "}}", []string{"StatefulSet default/s-0", "StatefulSet default/s-1"}},
		"DaemonSet":             {"{apiVersion: apps/v1, kind: DaemonSet, metadata: {name: d}, spec: {template: " + podTemplate + "}}", []string{"DaemonSet default/d-1"}},
		"Job":                   {"{apiVersion: batch/v1, kind: Job, metadata: {name: j}, spec: {parallelism: 2, template: " + podTemplate + "}}", []string{"Job default/j-1", "Job default/j-2"}},
		"CronJob":               {"{apiVersion: batch/v1, kind: CronJob, metadata: {name: c}, spec: {schedule: x, jobTemplate: {spec: {template: " + podTemplate + "}}}}", []string{"CronJob default/c-1"}},
		"passed over":           {"{apiVersion: v1, kind: ConfigMap, metadata: {name: x}}\n---\n" + podText("a", ""), []string{"Pod default/a"}},
		"UTF-16, by PowerShell": {utf16(podText("a", "") + "\n---\n" + podText("b", "")), []string{"Pod default/a", "Pod default/b"}},
		"UTF-8 with a mark":     {"\ufeff---\n" + podText("a", "") + "\n---\n" + podText("b", ""), []string{"Pod default/a", "Pod default/b"}},
		"windows line ends":     {strings.ReplaceAll(podText("a", "")+"\n---\n"+podText("b", ""), "\n", "\r\n"), []string{"Pod default/a", "Pod default/b"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			workloads, _, err := Read(strings.NewReader(test.text))
			if err != nil {
				t.Fatal(err)
			}
			pods, err := list(workloads, 0)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, p := range pods {
				got = append(got, p.Kind+" "+p.Namespace+"/"+p.Name)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestReadRefuses(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ text, want string }{
		"nothing":                            {"", "there is no pod in it, but nothing"},
		"no pod":                             {"{apiVersion: v1, kind: Service, metadata: {name: x}}", "there is no pod in it, but Service x"},
		"an old Deployment":                  {"{apiVersion: extensions/v1beta1, kind: Deployment, metadata: {name: x}}", "but Deployment x"},
		"no kind":                            {"metadata: {name: x}", "it has no kind"},
		"no YAML":                            {podText("a", "") + "\n---\n{", "document 2"},
		"a typing error":                     {strings.Replace(podText("a", ""), "image:", "imgae:", 1), `document 1: Pod a: unknown field "spec.containers[0].imgae"`},
		"a request in its place's neighbour": {strings.Replace(podText("a", ""), "resources: {}", "resources: {directx.microsoft.com/display: 1}", 1), `unknown field "spec.containers[0].resources.directx.microsoft.com/display"`},
		"in a template":                      {"{apiVersion: apps/v1, kind: Deployment, metadata: {name: d}, spec: {template: {spec: {initContainers: [{name: i, Resources: {}}], containers: [{name: main}]}}}}", "initContainers[0].Resources"},
		"a name of no text":                  {strings.Replace(podText("a", ""), "name: main", "name: yes", 1), "Pod a: spec.containers.name is of the type bool, which"},
		"a map in a list's place":            {"{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: {name: c}}}", "document 1: Pod a: spec.containers is of the type object, which"},
		"no object":                          {"just text", "document 1: the whole document is of the type string, which"},
		"a key twice":                        {strings.Replace(podText("a", ""), "image: x", "image: x, image: y", 1), `"image" already set`},
		"no name":                            {strings.Replace(podText("a", ""), "name: a", "labels: {}", 1), "it has no name"},
		"no container":                       {"{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {}}", "Pod a: its pod has no container"},
		"no container name":                  {"{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [{}]}}", "a container has no name"},
		"one name for two":                   {"{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {initContainers: [{name: x}], containers: [{name: x}]}}", `two containers are called "x"`},
		"half a GPU":                         {podText("a", `{limits: {directx.microsoft.com/display: "0.5"}}`), `container "main": resources.limits: "0.5" of directx.microsoft.com/display is no whole number`},
		"less than none":                     {podText("a", `{limits: {directx.microsoft.com/display: -1}}`), "no whole number"},
		"beyond reason":                      {podText("a", `{limits: {directx.microsoft.com/display: 1Ei}}`), "no whole number"},
		"no quantity":                        {podText("a", `{limits: {directx.microsoft.com/display: many}}`), "Pod a"},
		"requests alone":                     {podText("a", `{requests: {directx.microsoft.com/display: 1}}`), "set it in limits"},
		"another request":                    {podText("a", `{limits: {directx.microsoft.com/display: 2}, requests: {directx.microsoft.com/display: 1}}`), "they must be equal"},
		"a list of lists":                    {"{apiVersion: v1, kind: List, items: [{apiVersion: v1, kind: List}]}", "it is a list again"},
		"a list's bad item":                  {"{apiVersion: v1, kind: List, items: [{apiVersion: v1, kind: Pod, metadata: {name: a}}]}", "item 0: Pod a"},
		"more than is taken":                 {strings.Repeat("#", maxManifestBytes+1), "longer than"},
	} {
		workloads, _, err := Read(strings.NewReader(test.text))
		if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, %v; want an error of one line with %q", name, workloads, err, test.want)
		}
	}
}

func TestTooManyPodsAreNotSimulated(t *testing.T) {
	t.Parallel()
	if pods, err := list([]Workload{{Kind: "Job", Name: "j", Count: maxPods + 1}}, 0); err == nil || !strings.Contains(err.Error(), "--count") {
		t.Errorf("%d pods, %v", len(pods), err)
	}
}

func TestPodRequest(t *testing.T) {
	t.Parallel()
	const gpu = "directx.microsoft.com/display"
	asks := func(n int) ContainerSpec {
		return ContainerSpec{Resources: requirements{Limits: map[string]quantity{gpu: quantity(strconv.Itoa(n))}}}
	}
	sidecar := asks(1)
	sidecar.RestartPolicy = "Always"
	for name, test := range map[string]struct {
		init, main []ContainerSpec
		want       int64
	}{
		"containers add up":              {nil, []ContainerSpec{asks(1), asks(2)}, 3},
		"an init container's are reused": {[]ContainerSpec{asks(2), asks(1)}, []ContainerSpec{asks(1)}, 2},
		"a sidecar's are not":            {[]ContainerSpec{sidecar, asks(1)}, []ContainerSpec{asks(1)}, 2},
		"init before a sidecar":          {[]ContainerSpec{asks(3), sidecar}, []ContainerSpec{asks(1)}, 3},
		"init after a sidecar":           {[]ContainerSpec{sidecar, asks(3)}, []ContainerSpec{asks(1)}, 4},
	} {
		if got := podRequest(PodSpec{InitContainers: test.init, Containers: test.main}); got[gpu] != test.want || len(got) != 1 {
			t.Errorf("%s: %v, want %d", name, got, test.want)
		}
	}
}

// FuzzRead: whatever a manifest is, it is read or refused in one line, and a pod
// that is read can be run.
func FuzzRead(f *testing.F) {
	for _, text := range []string{
		podText("a", ""), podText("a", `{limits: {directx.microsoft.com/display: "1"}}`), "", "---\n---", "kind: Pod", "apiVersion: v1\nkind: List\nitems: [{}]",
		"a: &a [*a]", "{apiVersion: batch/v1, kind: Job, metadata: {name: j}, spec: {parallelism: -1, template: " + podTemplate + "}}",
	} {
		f.Add([]byte(text))
	}
	examples, err := filepath.Glob("../../../deployments/examples/*/*.yaml")
	if err != nil || len(examples) == 0 {
		f.Fatal(examples, err)
	}
	for _, example := range examples {
		text, err := os.ReadFile(example)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		workloads, _, err := Read(strings.NewReader(string(data)))
		if err != nil {
			if strings.ContainsAny(err.Error(), "\r\n") {
				t.Errorf("more than a line: %v", err)
			}
			return
		}
		if len(workloads) == 0 {
			t.Error("nothing, and no error")
		}
		for _, w := range workloads {
			if w.Name == "" || w.Namespace == "" || w.Count < 0 || len(w.Spec.Containers) == 0 {
				t.Errorf("%+v", w)
			}
			for resource, n := range podRequest(w.Spec) {
				if n < 0 {
					t.Errorf("%d of %s", n, resource)
				}
			}
		}
	})
}

// utf16 returns text in UTF-16, little-endian, with a byte order mark.
func utf16(text string) string {
	encoded := "\xff\xfe"
	for _, r := range text {
		encoded += string([]byte{byte(r), byte(r >> 8)})
	}
	return encoded
}

// podText returns a manifest of a pod with one container.
func podText(name, resources string) string {
	if resources == "" {
		resources = "{}"
	}
	return "apiVersion: v1\nkind: Pod\nmetadata: {name: " + name + "}\nspec:\n  containers:\n  - {name: main, image: x, resources: " + resources + "}"
}

func oneLinePod(name string) string {
	return "{apiVersion: v1, kind: Pod, metadata: {name: " + name + "}, spec: {containers: [{name: main}]}}"
}
