//go:build e2e && linux

package e2e

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

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
		"flags for ctr give the GPUs":                          s.testFlags,
		"flags for nerdctl give the GPUs":                      s.testNerdctlFlags,
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

// testFlags has containers that ctr makes with dxctl's flags.
func (s *suite) testFlags(t *testing.T) {
	for request, gpus := range map[string][]int{"all": {0, 1, 2}, "1": {1}, "2,0": {0, 2}} {
		t.Run(request, func(t *testing.T) {
			t.Parallel()
			id := fmt.Sprint("flags-", len(gpus))
			flags := strings.Split(strings.TrimSpace(s.Dxctl(t, "flags", "--gpus", request)), "\n")
			s.CtrDetach(t, id, append([]string{"--runtime", bed.Runc}, flags...)...)
			s.mustUse(t, id, gpus...)
		})
	}
}

// mustUse fails the test unless a container has exactly these GPUs, and may open their device nodes.
func (s *suite) mustUse(t *testing.T, id string, gpus ...int) {
	t.Helper()
	s.mustHave(t, id, gpus...)
	for _, gpu := range gpus {
		out, _ := s.Ctr("task", "exec", "--exec-id", fmt.Sprint("open-", gpu), id, "cat", s.DeviceNode(s.Inventory.GPUs[gpu]))
		bed.MustContain(t, "the output of the container", out, "No such device or address") // There is no driver.
	}
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

// testNerdctlFlags has a container that nerdctl makes with dxctl's flags.
func (s *suite) testNerdctlFlags(t *testing.T) {
	flags := strings.Split(strings.TrimSpace(s.Dxctl(t, "flags", "--for", "nerdctl", "--gpus", "0,2")), "\n")
	out, err := s.Nerdctl(t, slices.Concat([]string{"run", "--detach", "--name", "nerdctl-flags", "--net", "none", "--cgroup-parent", bed.Cgroup()}, flags,
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
	s.mustUse(t, lines[len(lines)-1], 0, 2)
}
