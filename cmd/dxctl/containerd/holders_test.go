package containerd

import (
	"slices"
	"testing"

	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/containerdconfig"
)

// entry returns a record of the container main of a pod. Without a name it is not bound.
func entry(name, uid string) allocation.Entry {
	if uid == "" {
		return allocation.Entry{}
	}
	return allocation.Entry{Holder: &allocation.Holder{PodUID: uid, Container: "main", PodNamespace: "default", PodName: name}}
}

func TestRunningHolders(t *testing.T) {
	t.Parallel()
	injected := entry("kubelet", "uid-k")
	injected.Injected = true
	entries := []allocation.Entry{
		entry("run", "uid-r"), entry("run", "uid-r"), entry("ended", "uid-e"), entry("gone", "uid-g"),
		entry("named", "name:default/named"), entry("", ""), injected,
	}
	pods := map[string]containerdconfig.Pod{
		"uid-r": {Namespace: "default", Name: "run", Ready: true}, "uid-e": {Namespace: "default", Name: "ended"},
		"uid-n": {Namespace: "default", Name: "named", Ready: true}, "uid-k": {Namespace: "default", Name: "kubelet", Ready: true},
	}
	if got, want := runningHolders(entries, pods), []string{"default/named/main", "default/run/main"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if got := runningHolders(entries, nil); len(got) != 4 {
		t.Errorf("unknown pods: %q", got)
	}
}
