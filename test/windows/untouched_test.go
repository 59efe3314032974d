//go:build e2e && linux

package windows

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"directx-nri/test/windows/bed"
)

func (n node) testUntouched(t *testing.T) {
	t.Run("the sandbox", func(t *testing.T) {
		t.Parallel()
		id, plain := "box-ours", "box-bare"
		for runtime, id := range map[string]string{bed.Directx: id, n.Plain(): plain} {
			spec := n.SandboxSpec(t, bed.NewPod(id))
			// Also if the pause image has a request.
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
			// Wine lacks what such a container needs: the error must be the same without
			// the shim.
			if err := n.Run(t, runtime, id, bed.JSON(t, spec)); err != nil {
				errs[runtime] = strings.ReplaceAll(err.Error(), sandbox, "SANDBOX")
			}
		}
		for _, suffix := range []string{"", "-app"} {
			ours, plain := pods[bed.Directx], pods[n.Plain()]
			n.mustEqualConfigs(t, ours+suffix, ours, plain+suffix, plain)
		}
		if errs[bed.Directx] != errs[n.Plain()] || strings.Contains(errs[bed.Directx], "directx-nri") {
			t.Errorf("it failed with %q, and without the shim with %q", errs[bed.Directx], errs[n.Plain()])
		}
	})

	for i, test := range []struct {
		name string
		args string
		host string
		// end ends a container that runs.
		end func(*testing.T, string)
	}{
		{"killed and deleted", bed.Forever, "host", func(t *testing.T, id string) { n.Delete(t, id) }},
		{"ends by itself", "exit", "host", func(t *testing.T, id string) {
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
		{"refused by HCS", bed.Forever, "hcs-double-refuse", nil},
		{"its shim is killed", bed.Forever, "host", func(t *testing.T, id string) {
			for _, p := range n.Processes(id) {
				bed.KillProcess(t, p)
			}
		}},
	} {
		t.Run("the same cleanup: "+test.name, func(t *testing.T) {
			t.Parallel()
			request, none, plain := fmt.Sprintf("clean-asks-%d", i), fmt.Sprintf("clean-none-%d", i), fmt.Sprintf("clean-bare-%d", i)
			for _, c := range []struct{ runtime, id string }{{bed.Directx, request}, {bed.Directx, none}, {n.Plain(), plain}} {
				spec := n.Standalone(t, c.id)
				spec.Process.Args = []string{test.args}
				spec.Hostname = test.host
				if c.id == request {
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
			for _, id := range []string{request, none} {
				if got, want := n.calls(t, id), n.calls(t, plain); !slices.Equal(got, want) {
					t.Errorf("%s: the calls of the real shim and HCS are\n%q\nand without the shim\n%q", id, got, want)
				}
			}
		})
	}
}

// calls returns the calls of the real shim and of HCS for a container.
func (n node) calls(t *testing.T, id string) []string {
	t.Helper()
	var calls []string
	for _, call := range n.ShimCalls(t, id) {
		calls = append(calls, strings.ReplaceAll(strings.Join(call.Args, " "), id, "ID"))
	}
	for _, call := range n.Calls(t, id) {
		calls = append(calls, call.Name)
	}
	return calls
}
