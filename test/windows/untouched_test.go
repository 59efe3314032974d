//go:build e2e && linux

package windows

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"directx-nri/test/windows/bed"
)

func testUntouched(t *testing.T, n node) {
	t.Run("the sandbox", func(t *testing.T) {
		t.Parallel()
		id, plain := "box-ours", "box-bare"
		for runtime, id := range map[string]string{bed.Directx: id, n.Plain(): plain} {
			spec := n.SandboxSpec(t, bed.NewPod(id))
			// Not even when the pause image asks.
			spec.Process.Env = append(spec.Process.Env, "DIRECTX_VISIBLE_DEVICES=all")
			n.MustRun(t, runtime, id, bed.JSON(t, spec))
		}
		n.mustEqualPlain(t, id, plain)
	})

	t.Run("host-process containers", func(t *testing.T) {
		t.Parallel()
		pods := map[string]string{bed.Directx: "host-ours", n.Plain(): "host-bare"}
		errs := map[string]string{}
		for runtime, sandbox := range pods {
			pod := bed.NewPod(sandbox)
			pod.HostProcess = true
			n.MustRun(t, runtime, sandbox, bed.JSON(t, n.SandboxSpec(t, pod)))
			id := sandbox + "-app"
			spec := n.ContainerSpec(t, pod, id, "app")
			spec.Process.Env = append(spec.Process.Env, "DIRECTX_VISIBLE_DEVICES=all")
			// Wine has not all that such a container needs: it fares as it
			// does without us.
			if err := n.Run(t, runtime, id, bed.JSON(t, spec)); err != nil {
				errs[runtime] = strings.ReplaceAll(err.Error(), sandbox, "SANDBOX")
			}
		}
		for _, suffix := range []string{"", "-app"} {
			ours, plain := pods[bed.Directx], pods[n.Plain()]
			n.mustEqualConfigs(t, ours+suffix, ours, plain+suffix, plain)
		}
		if errs[bed.Directx] != errs[n.Plain()] {
			t.Errorf("it failed with %q, and without us with %q", errs[bed.Directx], errs[n.Plain()])
		}
		if strings.Contains(errs[bed.Directx], "directx-nri") {
			t.Errorf("it was refused by us: %s", errs[bed.Directx])
		}
	})

	for i, test := range []struct {
		name string
		args string
		host string
		// end ends a container that runs.
		end func(*testing.T, string)
	}{
		{"a container that is killed and deleted", bed.Forever, "host", func(t *testing.T, id string) { n.Delete(t, id) }},
		{"a container that ends by itself", "exit", "host", func(t *testing.T, id string) {
			bed.Eventually(t, "the task ends", func() error {
				if state := n.Tasks(t)[id]; state != "STOPPED" {
					return fmt.Errorf("it is %q", state)
				}
				return nil
			})
			if _, err := n.Ctr(t, "tasks", "rm", id); err != nil {
				t.Error(err)
			}
		}},
		{"a container that HCS refuses", bed.Forever, "hcs-double-refuse", nil},
		{"a container whose shim is killed", bed.Forever, "host", func(t *testing.T, id string) {
			for _, p := range n.Processes(id) {
				bed.KillProcess(t, p)
			}
		}},
	} {
		t.Run("is cleaned up as without us: "+test.name, func(t *testing.T) {
			t.Parallel()
			asks, silent, plain := fmt.Sprintf("clean-asks-%d", i), fmt.Sprintf("clean-none-%d", i), fmt.Sprintf("clean-bare-%d", i)
			for _, c := range []struct{ runtime, id string }{{bed.Directx, asks}, {bed.Directx, silent}, {n.Plain(), plain}} {
				spec := n.Standalone(t, c.id)
				spec.Process.Args = []string{test.args}
				spec.Hostname = test.host
				if c.id == asks {
					spec.Process.Env = append(spec.Process.Env, "DIRECTX_VISIBLE_DEVICES=all")
				}
				err := n.Run(t, c.runtime, c.id, bed.JSON(t, spec))
				if started := err == nil; started != (test.end != nil) {
					t.Fatalf("start %s: %v", c.id, err)
				}
				if test.end != nil {
					test.end(t, c.id)
				}
				n.mustLeaveNothing(t, c.id)
			}
			for _, id := range []string{asks, silent} {
				if got, want := n.story(t, id), n.story(t, plain); !slices.Equal(got, want) {
					t.Errorf("%s: the real shim and HCS were called for\n%q\nand without us for\n%q", id, got, want)
				}
			}
		})
	}
}

// mustLeaveNothing waits until container id has left no process, no bundle and
// no compute system.
func (n node) mustLeaveNothing(t *testing.T, id string) {
	t.Helper()
	bed.Eventually(t, "nothing is left of "+id, func() error {
		if left := n.Processes(id); len(left) > 0 {
			return fmt.Errorf("%d processes: %+v", len(left), left)
		}
		if n.Bundle(id) {
			return fmt.Errorf("its bundle is there")
		}
		if n.Exists(id) {
			return fmt.Errorf("its compute system is there")
		}
		return nil
	})
}

// story is what a container's life looked like from below: the actions that
// the real shim was called for with their flags' names, and the calls of HCS.
func (n node) story(t *testing.T, id string) []string {
	t.Helper()
	var story []string
	for _, call := range n.ShimCalls(t, id) {
		story = append(story, strings.ReplaceAll(strings.Join(call.Args, " "), id, "ID"))
	}
	for _, call := range n.Calls(t, id) {
		story = append(story, call.Name)
	}
	return story
}
