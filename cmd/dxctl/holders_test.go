package main

import (
	"slices"
	"testing"

	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/containerdconfig"
)

func TestRunningHolders(t *testing.T) {
	t.Parallel()
	injected := entry("kubelet", "uid-k", "2")
	injected.Injected = true
	entries := []allocation.Entry{
		entry("run", "uid-r", "0"), entry("run", "uid-r", "1"), entry("ended", "uid-e", "3"), entry("gone", "uid-g", "4"),
		entry("named", "name:default/named", "5"), entry("", "", "6"), injected,
	}
	pods := map[string]containerdconfig.Pod{
		"uid-r": {Namespace: "default", Name: "run", Ready: true}, "uid-e": {Namespace: "default", Name: "ended"},
		"uid-n": {Namespace: "default", Name: "named", Ready: true}, "uid-k": {Namespace: "default", Name: "kubelet", Ready: true},
	}
	if got, want := runningHolders(entries, pods, false), []string{"default/named/main", "default/run/main"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if got := runningHolders(entries, nil, true); len(got) != 4 {
		t.Errorf("unknown pods: %q", got)
	}
}
