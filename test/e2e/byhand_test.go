//go:build e2e && linux

package e2e

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/test/bed"
)

// TestByHand runs containers with the output of dxctl, by the real ctr and nerdctl.
func TestByHand(t *testing.T) {
	s := start(t, bed.Options{NoKubelet: true, Shim: true, Inventory: bed.NewInventory(2, 1)})
	t.Run("what has no flag is reported, and the shim does it", s.testNoFlag)
	s.SameDevicePaths = true
	s.WriteInventory(t, s.Inventory)
	s.Dxctl(t, "config", "apply", "--config", s.ConfigFile())
	sideBySide(t, map[string]func(*testing.T){
		"flags give what the shim gives":                       s.testFlags,
		"flags for nerdctl give what the shim gives":           s.testNerdctlFlags,
		"the shown spec is the one that is run, byte for byte": s.testDxctlSpec,
	})
}

// testNoFlag has GPUs whose device nodes have another path in the container.
func (s *suite) testNoFlag(t *testing.T) {
	status, stdout, stderr := call(t, s.DxctlCommand("flags", "--for", "ctr", "--gpus", "1"))
	if status != 1 || stdout != "" || strings.Count(stderr, "\n") != 1 {
		t.Errorf("status %d\n%s%s", status, stdout, stderr)
	}
	bed.MustContain(t, "what dxctl prints", stderr, s.Inventory.GPUs[1].ContainerPath(), "--with-shim")
	s.CtrDetach(t, "no-flag", strings.Fields(s.Dxctl(t, "flags", "--gpus", "1", "--with-shim"))...)
	s.mustHave(t, "no-flag", 1)
}

// testFlags compares the spec of a container made by ctr with dxctl's flags with the one
// that the shim makes of a request.
func (s *suite) testFlags(t *testing.T) {
	for id, request := range map[string]string{"all": "all", "one": "1", "two": "2,0"} {
		t.Run(id, func(t *testing.T) {
			t.Parallel()
			flags := strings.Split(strings.TrimSpace(s.Dxctl(t, "flags", "--gpus", request)), "\n")
			s.CtrDetach(t, "flags-"+id, append([]string{"--runtime", bed.Runc}, flags...)...)
			s.run(t, "shim-"+id, annotation(request)...)
			s.mustBeAlike(t, "flags-"+id, "shim-"+id)
		})
	}
}

// mustBeAlike fails the test unless the container that a client made with dxctl's flags
// has the same GPUs in its spec as the one that the shim edited.
func (s *suite) mustBeAlike(t *testing.T, byHand, byShim string) {
	t.Helper()
	hand, shim := s.given(t, byHand), s.given(t, byShim)
	if len(shim.Devices) == 0 || len(shim.Mounts) < 4 {
		t.Errorf("the shim gives %+v", shim)
	}
	if diff := cmp.Diff(shim, hand); diff != "" {
		t.Errorf("the specs differ (-shim +by hand):\n%s", diff)
	}
}

// gpuParts are the parts of a container's spec that belong to GPUs.
type gpuParts struct {
	Devices []specs.LinuxDevice
	Rules   []specs.LinuxDeviceCgroup
	Mounts  []specs.Mount
}

// given returns the parts of a running container, without what ctr and nerdctl have no
// flag for.
func (s *suite) given(t *testing.T, id string) (g gpuParts) {
	t.Helper()
	var spec specs.Spec
	testutil.NoError(t, json.Unmarshal(s.client.Started(t, id), &spec))
	for _, d := range spec.Linux.Devices {
		if !strings.HasPrefix(d.Path, s.Dir) {
			continue
		}
		g.Devices = append(g.Devices, d)
		for _, rule := range spec.Linux.Resources.Devices {
			if rule.Major != nil && rule.Minor != nil && *rule.Major == d.Major && *rule.Minor == d.Minor {
				rule.Access = strings.TrimSuffix(rule.Access, "m")
				g.Rules = append(g.Rules, rule)
			}
		}
	}
	for _, m := range spec.Mounts {
		if strings.HasPrefix(m.Destination, "/usr/lib/wsl/") {
			m.Options = slices.DeleteFunc(m.Options, func(o string) bool { return o == "nosuid" || o == "nodev" })
			if i := slices.Index(m.Options, "rbind"); i >= 0 {
				m.Options[i] = "bind" // nerdctl has no flag for it.
			}
			slices.Sort(m.Options)
			g.Mounts = append(g.Mounts, m)
		}
	}
	slices.SortFunc(g.Mounts, func(a, b specs.Mount) int { return strings.Compare(a.Destination, b.Destination) })
	return g
}

// testDxctlSpec compares dxctl's preview of a spec with the shim's edit of it.
func (s *suite) testDxctlSpec(t *testing.T) {
	for id, flags := range map[string][]string{"spec-all": annotation("all"), "spec-one": annotation("1"), "spec-none": nil} {
		t.Run(id, func(t *testing.T) {
			t.Parallel()
			s.run(t, id, flags...)
			cmd := s.DxctlCommand("spec", "-", "-o", "json")
			cmd.Stdin = bytes.NewReader(s.client.Given(t, id))
			out, err := cmd.Output()
			if err != nil || !bytes.Equal(out, s.client.Started(t, id)) {
				t.Errorf("%v\n%s\nwant\n%s", err, out, s.client.Started(t, id))
			}
		})
	}
}

// testNerdctlFlags compares what a container that nerdctl makes with dxctl's flags
// has of GPUs with what the shim gives.
func (s *suite) testNerdctlFlags(t *testing.T) {
	flags := strings.Split(strings.TrimSpace(s.Dxctl(t, "flags", "--for", "nerdctl", "--gpus", "0,2")), "\n")
	out, err := s.Nerdctl(t, slices.Concat([]string{"run", "--detach"}, []string{"--name", "nerdctl-flags", "--net", "none", "--cgroup-parent", bed.Cgroup()}, flags,
		[]string{bed.Image, "/bin/sh", "-c", "sleep 600"})...)
	t.Cleanup(func() {
		if out, err := s.Nerdctl(t, "rm", "--force", "nerdctl-flags"); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	})
	if err != nil {
		t.Fatalf("nerdctl run %q: %v\n%s", flags, err, out)
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	s.run(t, "nerdctl-shim", annotation("0,2")...)
	s.mustBeAlike(t, lines[len(lines)-1], "nerdctl-shim")
}
