package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"directx-nri/advertiser"
	"directx-nri/internal/containerdconfig"
	"directx-nri/internal/shimfile"
)

// unserved returns the names of the runtime handlers, once each, by which pods
// run whose containers get no GPU. Where there is no such pod, none can be the
// one that starts: a container's sandbox is ready before the container starts.
func unserved(loaded containerdconfig.Loaded, sandboxes []containerdconfig.Sandbox) (handlers []string) {
	for _, s := range sandboxes {
		if name := loaded.Name(s.Handler); !loaded.Serves(name) && !slices.Contains(handlers, name) {
			handlers = append(handlers, name)
		}
	}
	return handlers
}

// podServed returns nil when a pod that holds a GPU runs by a runtime handler
// whose containers get it. A pod may have two sandboxes for a moment, as when it
// was deleted by force and made anew under its name: both count.
func podServed(loaded containerdconfig.Loaded, sandboxes []containerdconfig.Sandbox, pod advertiser.Pod) error {
	found := false
	for _, s := range sandboxes {
		if s.Namespace != pod.Namespace || s.Name != pod.Name {
			continue
		}
		found = true
		name := loaded.Name(s.Handler)
		if loaded.Serves(name) {
			continue
		}
		if !loaded.CanServe(name) {
			return fmt.Errorf("pod %s runs by the runtime handler %s, whose containers can have no GPU; %s", pod, name, remake(loaded))
		}
		return fmt.Errorf("pod %s runs by the runtime handler %s, whose containers do not go through %s; %s, or %s on this node for all pods",
			pod, name, shimfile.Base, remake(loaded), containerdconfig.Fix)
	}
	if !found {
		return fmt.Errorf("pod %s has no sandbox in containerd that is ready, so it is not known by which runtime handler it runs", pod)
	}
	return nil
}

// unknown returns why a container is not started whose pod could not be found
// out. elsewhere are the handlers that it must not run by.
func unknown(loaded containerdconfig.Loaded, elsewhere []string, err error) error {
	way := "is --pod-resources-socket right?"
	if errors.Is(err, advertiser.ErrNoHolder) {
		way = fmt.Sprintf("have a container that is not an init container ask for as many too, or %s on this node", containerdconfig.Fix)
	}
	served, _ := loaded.Split()
	return fmt.Errorf("pods of the runtime handler %s get GPUs and those of %s do not, and it is not known of which this one is: %w; %s",
		strings.Join(served, ", "), strings.Join(elsewhere, ", "), err, way)
}

// remake says how to make a pod that gets its GPU. A pod's runtimeClassName
// cannot be changed.
func remake(loaded containerdconfig.Loaded) string {
	served, _ := loaded.Split()
	named := slices.DeleteFunc(served, func(name string) bool { return name == loaded.Default })
	var ways []string
	if loaded.Serves(loaded.Default) {
		ways = append(ways, "without a runtimeClassName")
	}
	if len(named) > 0 {
		ways = append(ways, "with the runtimeClassName of a RuntimeClass whose handler is "+strings.Join(named, " or "))
	}
	return "make the pod anew " + strings.Join(ways, " or ")
}
