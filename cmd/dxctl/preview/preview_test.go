package preview

import (
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"directx-nri/discovery"
	"directx-nri/internal/allocation"
	"directx-nri/internal/hostfiles"
	"directx-nri/internal/testutil"
	"directx-nri/nri/decision"
)

// allFiles has each file, and device nodes with numbers.
type allFiles struct{ hostfiles.Assumed }

func (allFiles) DeviceNode(path string) (specs.LinuxDevice, error) {
	return specs.LinuxDevice{Path: path, Type: "c", Major: 10}, nil
}

// node returns a node with one GPU, and a token of an allocation of it. Its GPUs
// are asked for only where asked is expected.
func node(t *testing.T) (Node, allocation.Token, *int) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "allocations")
	recorder, err := allocation.OpenRecorder(t.Context(), dir, testutil.Quiet())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = recorder.Close() })
	token, err := recorder.Record(t.Context(), "directx.microsoft.com/compute", []allocation.Replica{{ID: "GPU::0", InstanceID: "GPU"}}, false)
	if err != nil {
		t.Fatal(err)
	}
	gpu := discovery.Device{InstanceID: "GPU", SupportsCompute: true, DeviceNodes: []discovery.DeviceNode{{Path: "/dev/dxg", ContainerPath: "/dev/dxg"}}}
	asked := 0
	source := func() (discovery.Source, error) { asked++; return discovery.Static{gpu}, nil }
	return Node{Source: source, Store: allocation.OpenStore(dir), Files: allFiles{}}, token, &asked
}

// spec is a Linux container's, of a pod when it has a name.
func spec(pod string, annotations map[string]string, env ...string) []byte {
	all := map[string]string{}
	if pod != "" {
		all = map[string]string{
			"io.kubernetes.cri.container-type": "container", "io.kubernetes.cri.container-name": "main",
			"io.kubernetes.cri.sandbox-uid": "uid", "io.kubernetes.cri.sandbox-name": pod, "io.kubernetes.cri.sandbox-namespace": "ns",
		}
	}
	for key, value := range annotations {
		all[key] = value
	}
	data, err := json.Marshal(specs.Spec{Process: &specs.Process{Env: env}, Annotations: all, Linux: &specs.Linux{}})
	if err != nil {
		return nil
	}
	return data
}

func TestAsk(t *testing.T) {
	t.Parallel()
	const variable = "DIRECTX_ALLOCATION_COMPUTE"
	stale := string(allocation.NewToken())
	for name, test := range map[string]struct {
		spec    func(token string) []byte
		request string
		token   bool
		// untouched or refused is in the reason, neither when it is given.
		untouched, refused string
	}{
		"a pod that presents its token":       {spec: func(token string) []byte { return spec("p", nil, variable+"="+token) }},
		"a pod that presents nothing":         {spec: func(string) []byte { return spec("p", nil) }, untouched: NoRequest},
		"a pod's request counts for nothing":  {spec: func(string) []byte { return spec("p", nil, "DIRECTX_VISIBLE_DEVICES=all") }, untouched: NoRequest},
		"a pod with a stale token":            {spec: func(string) []byte { return spec("p", nil, variable+"="+stale) }, refused: "no allocation is recorded"},
		"a token in the place of a stale one": {spec: func(string) []byte { return spec("p", nil, variable+"="+stale) }, token: true},
		"a token in the place of a stale annotation": {
			spec: func(string) []byte {
				return spec("p", map[string]string{"directx.microsoft.com/allocation.compute": stale})
			},
			token: true,
		},
		"a token for a spec of no pod":         {spec: func(string) []byte { return spec("", nil) }, token: true},
		"a standalone request":                 {spec: func(string) []byte { return spec("", nil, "DIRECTX_VISIBLE_DEVICES=0") }},
		"a standalone request for what is not": {spec: func(string) []byte { return spec("", nil, "DIRECTX_VISIBLE_DEVICES=3") }, refused: `"3"`},
		"a standalone container with a token":  {spec: func(token string) []byte { return spec("", nil, variable+"="+token) }, refused: "belongs to no pod"},
		"a request in the place of all else":   {spec: func(token string) []byte { return spec("p", nil, variable+"="+token) }, request: "0"},
		"a request in the place of none":       {spec: func(string) []byte { return spec("", map[string]string{decision.VisibleAnnotation: "none"}) }, request: "all"},
		"a pod's sandbox": {spec: func(string) []byte {
			return []byte(`{"linux":{},"annotations":{"io.kubernetes.cri.container-type":"sandbox"}}`)
		}, untouched: NotEligible, request: "0"},
		"what has its GPU already stays as it is": {spec: func(string) []byte {
			return []byte(`{"linux":{"devices":[{"path":"/dev/dxg","type":"c","major":10,"minor":0}],"resources":{"devices":[{"allow":true,"type":"c","major":10,"minor":0,"access":"rw"}]}}}`)
		}, untouched: Complete, request: "0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, token, asked := node(t)
			q := Question{Spec: test.spec(string(token)), ID: "c1", Request: test.request}
			if test.token {
				q.Token = token
			}
			a, err := Ask(t.Context(), q, n)
			if err != nil {
				t.Fatal(err)
			}
			if a.Unchanged != test.untouched || (a.Refused != nil) != (test.refused != "") || a.Refused != nil && !strings.Contains(a.Refused.Error(), test.refused) {
				t.Errorf("untouched %q, refused %v", a.Unchanged, a.Refused)
			}
			given := test.untouched == "" && test.refused == ""
			if changed := string(a.Spec) != string(q.Spec); changed != given || given && len(a.Outcome.Devices) != 1 {
				t.Errorf("changed %t: %s, %+v", changed, a.Spec, a.Outcome)
			}
			if nothing := test.untouched == NoRequest || test.untouched == NotEligible; (*asked == 0) != nothing {
				t.Errorf("the node's GPUs were asked for %d times", *asked)
			}
			if _, bound, err := n.Store.Holder(token); bound || err != nil {
				t.Errorf("bound %t, %v", bound, err)
			}
			for _, secret := range []string{string(token), stale} {
				if strings.Contains(a.Redact(string(a.Spec)), secret) || a.Refused != nil && strings.Contains(a.Refused.Error(), secret) {
					t.Errorf("a token is shown: %s %v", a.Redact(string(a.Spec)), a.Refused)
				}
			}
		})
	}
}

func TestAskOfWhatCannotBeRead(t *testing.T) {
	t.Parallel()
	n, _, _ := node(t)
	for _, text := range []string{"", "{", "[]", `{"process":{"env":"x"}}`} {
		if _, err := Ask(t.Context(), Question{Spec: []byte(text)}, n); err == nil {
			t.Errorf("%s is a spec", text)
		}
	}
	unknown := errors.New("unknown")
	n.Source = func() (discovery.Source, error) { return nil, unknown }
	if _, err := Ask(t.Context(), Question{Spec: spec("", nil), Request: "all"}, n); !errors.Is(err, unknown) {
		t.Errorf("error %v", err)
	}
}
