package noderuntime

import (
	"bytes"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/directx-nri/directx-nri/cmd/dxctl/containerd"
	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/criclient"
	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/internal/testutil/allocationtest"
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
	byKubelet := entry("kubelet", "uid-k")
	byKubelet.ByKubelet = true
	entries := []allocation.Entry{
		entry("run", "uid-r"), entry("run", "uid-r"), entry("ended", "uid-e"), entry("gone", "uid-g"),
		entry("", ""), byKubelet,
	}
	pods := criclient.Pods{
		"uid-r": {Namespace: "default", Name: "run", Ready: true}, "uid-e": {Namespace: "default", Name: "ended"},
		"uid-k": {Namespace: "default", Name: "kubelet", Ready: true},
	}
	if got, want := runningHolders(entries, pods), []string{"default/run/main"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if got := runningHolders(entries, nil); len(got) != 3 {
		t.Errorf("unknown pods: %q", got)
	}
}

func TestUnknownHolders(t *testing.T) {
	t.Parallel()
	damaged, state := t.TempDir(), t.TempDir()
	testutil.WriteFile(t, paths.Allocations(damaged), "", 0o600)
	token := allocationtest.Record(t, paths.Allocations(state), "directx.microsoft.com/display", "GPU")
	testutil.NoError(t, allocation.OpenStore(paths.Allocations(state)).Bind(token, allocation.Holder{PodUID: "uid", Container: "main", PodNamespace: "team", PodName: "trainer"}))
	for dir, want := range map[string]string{damaged: "it is unknown which of them run: ", state: "it is unknown which of team/trainer/main run: "} {
		r := restarter{Instance: containerd.Instance{CRISocket: filepath.Join(dir, "none")}, stateDir: dir}
		testutil.CheckError(t, dir, r.checkHolders(t.Context(), io.Discard, true), want)
		var warning bytes.Buffer
		if err := r.checkHolders(t.Context(), &warning, false); err != nil || !strings.Contains(warning.String(), want) {
			t.Errorf("without a change: %v, %s", err, &warning)
		}
	}
}
