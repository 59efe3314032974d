//go:build linux

package shim

import (
	"slices"
	"strings"
	"testing"

	"directx-nri/internal/policy"
)

// hostFile is a file that each Linux has.
const hostFile = "/usr/lib/os-release"

func (b *bed) allowExtraMounts() {
	b.t.Helper()
	b.configure(func(p *policy.Policy) {
		p.ExtraMounts = policy.ExtraMounts{Sources: policy.MountHostDirectories, HostDirectories: []string{"/usr/lib"}, Max: 16}
	})
}

// containerd passes a pod's annotations on to its containers if the runtime's
// pod_annotations has directx.microsoft.com/*.
func TestPodRequestsExtraMounts(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.allowExtraMounts()
	variable := "DIRECTX_ALLOCATION_DISPLAY=" + b.allocate()
	annotations := podAnnotations("container", "u1")
	annotations["directx.microsoft.com/extra-mounts"] = "[" + hostFile + "/../os-release]"
	b.refused(b.start(specOf(annotations, variable)), `container "main" of pod default/web`, "extra mounts", "annotation directx.microsoft.com/extra-mounts")

	annotations["directx.microsoft.com/extra-mounts"] = "[" + hostFile + "]"
	b.started(b.start(specOf(annotations, variable)))
	var destinations []string
	for _, m := range b.edited().Mounts {
		destinations = append(destinations, m.Destination)
	}
	if !slices.Contains(destinations, "/usr/lib/wsl/lib/os-release") {
		t.Errorf("mounts at %v", destinations)
	}
	if env := strings.Join(b.edited().Process.Env, "\n"); !strings.Contains(env, "DIRECTX_DEVICES=[{") {
		t.Errorf("variables %q", env)
	}
	once := b.read("bundle/config.json")
	b.started(b.start(once))
	if b.read("bundle/config.json") != once {
		t.Error("the second time changed it again")
	}
}
