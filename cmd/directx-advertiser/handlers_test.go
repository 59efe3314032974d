package main

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"directx-nri/advertiser"
	"directx-nri/internal/containerdconfig"
)

// loaded returns a containerd with a handler of each sort: directx is served,
// usual could be, and hv could not. Its default is the named one.
func loaded(byDefault string) containerdconfig.Loaded {
	ours := "/x/containerd-shim-directx-v1"
	return containerdconfig.Loaded{OS: "linux", Default: byDefault, Handlers: []containerdconfig.Handler{
		{Name: "directx", RuntimeType: "io.containerd.runc.v2", RuntimePath: ours},
		{Name: "hv", RuntimeType: "io.containerd.kata.v2"},
		{Name: "usual", RuntimeType: "io.containerd.runc.v2"},
	}}
}

func TestPodServed(t *testing.T) {
	t.Parallel()
	type sandboxes = []containerdconfig.Sandbox
	mine := func(handler string) containerdconfig.Sandbox {
		return containerdconfig.Sandbox{Namespace: "team", Name: "gpu", Handler: handler}
	}
	namesake := containerdconfig.Sandbox{Namespace: "other", Name: "gpu", Handler: "directx"}
	for name, test := range map[string]struct {
		byDefault string
		sandboxes sandboxes
		want      string
	}{
		"by its RuntimeClass":     {"usual", sandboxes{mine("directx")}, ""},
		"by the default":          {"directx", sandboxes{mine("")}, ""},
		"made anew, both served":  {"directx", sandboxes{mine(""), mine("directx")}, ""},
		"made anew, one not":      {"usual", sandboxes{mine("directx"), mine("usual")}, "by the runtime handler usual"},
		"its namesake is served":  {"usual", sandboxes{namesake}, "pod team/gpu has no sandbox"},
		"none":                    {"usual", nil, "pod team/gpu has no sandbox"},
		"untrusted, none of that": {"directx", sandboxes{mine("untrusted")}, "by the runtime handler untrusted, whose containers can have no GPU"},
		"the default is not": {"usual", sandboxes{mine(""), namesake}, "pod team/gpu runs by the runtime handler usual, whose containers do not go through containerd-shim-directx-v1; " +
			"make the pod anew with the runtimeClassName of a RuntimeClass whose handler is directx, or run 'dxctl runtime configure --restart' on this node for all pods"},
		"cannot be": {"directx", sandboxes{mine("hv")}, "by the runtime handler hv, whose containers can have no GPU; make the pod anew without a runtimeClassName"},
	} {
		err := podServed(loaded(test.byDefault), test.sandboxes, advertiser.Pod{Namespace: "team", Name: "gpu"})
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
}

func TestUnserved(t *testing.T) {
	t.Parallel()
	got := unserved(loaded("usual"), []containerdconfig.Sandbox{{Handler: "directx"}, {Handler: ""}, {Handler: "hv"}, {Handler: "usual"}, {Handler: "gone"}})
	if diff := cmp.Diff([]string{"usual", "hv", "gone"}, got); diff != "" {
		t.Error(diff)
	}
	if got := unserved(loaded("directx"), []containerdconfig.Sandbox{{Handler: ""}, {Handler: "directx"}}); len(got) != 0 {
		t.Error(got)
	}
}

func TestUnknownTellsWhatToDo(t *testing.T) {
	t.Parallel()
	for want, err := range map[string]error{
		"is --pod-resources-socket right?": errors.New("no such socket"),
		"have a container that is not an init container ask for as many too, or run 'dxctl runtime configure --restart'": fmt.Errorf("who: %w", advertiser.ErrNoHolder),
	} {
		got := unknown(loaded("usual"), []string{"usual", "hv"}, err)
		if !errors.Is(got, err) || !strings.Contains(got.Error(), want) || !strings.Contains(got.Error(), "of the runtime handler directx get GPUs and those of usual, hv do not") {
			t.Error(got)
		}
	}
}
