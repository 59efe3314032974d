//go:build e2e && windows

package windows

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/directx-nri/directx-nri/test/windows/bed"
)

func (n node) testUntouched(t *testing.T) {
	const request = "DIRECTX_VISIBLE_DEVICES=all" // It has no effect.
	parallel(t,
		part{"the sandbox", func(t *testing.T) {
			n.both(t, "box-ours", "box-bare", func(runtime, id string) error {
				spec := n.SandboxSpec(t, bed.NewPod(id))
				spec.Process.Env = append(spec.Process.Env, request)
				return n.Run(t, runtime, id, spec)
			})
		}},
		part{"host-process containers", func(t *testing.T) {
			errs := map[string]string{}
			for runtime, sandbox := range map[string]string{bed.Directx: "host-ours", n.Plain(): "host-bare"} {
				pod := bed.NewPod(sandbox)
				pod.HostProcess = true
				n.MustRun(t, runtime, sandbox, n.SandboxSpec(t, pod))
				id := sandbox + "-app"
				spec := n.ContainerSpec(t, pod, id, "app")
				spec.Process.Env = append(spec.Process.Env, request)
				// Wine lacks what such a container needs: the error must be runhcs's own, and
				// the same without the shim.
				if err := n.Run(t, runtime, id, spec); err != nil {
					errs[sandbox] = strings.ReplaceAll(err.Error(), sandbox, "SANDBOX")
				}
			}
			for _, suffix := range []string{"", "-app"} {
				n.MustEqualConfigs(t, "host-ours"+suffix, "host-ours", "host-bare"+suffix, "host-bare")
			}
			ours, plain := errs["host-ours"], errs["host-bare"]
			if ours != plain || n.Doubled != strings.Contains(plain, "job object") || !n.Doubled && plain != "" {
				t.Errorf("it failed with %q, and without the shim with %q", ours, plain)
			}
		}},
	)
	for id, test := range map[string]struct {
		name   string
		change func(*specs.Spec)
		// end ends a container that runs.
		end func(*testing.T, string)
	}{
		"clean-deleted": {"killed and deleted", func(*specs.Spec) {}, func(t *testing.T, id string) { n.Delete(t, id) }},
		"clean-ended": {"ends by itself", func(s *specs.Spec) { s.Process.Args = []string{"cmd", "/c", "exit"} }, func(t *testing.T, id string) {
			bed.Eventually(t, "the task ends", func() error {
				if state := n.Tasks(t, "default")[id]; state != "STOPPED" {
					return fmt.Errorf("it is %q", state)
				}
				return nil
			})
			if _, err := n.Ctr("tasks", "rm", id); err != nil {
				t.Error(err)
			}
		}},
		"clean-refused": {"refused by HCS", func(s *specs.Spec) { s.Hostname = "hcs-double-refuse" }, nil},
		"clean-killed": {"its shim is killed", func(*specs.Spec) {}, func(t *testing.T, id string) {
			for _, p := range n.Processes(id) {
				p.Kill(t)
			}
		}},
	} {
		t.Run("the same cleanup: "+test.name, func(t *testing.T) {
			t.Parallel()
			if test.end == nil {
				n.NeedsDoubles(t, "the Host Compute Service has to refuse a container")
			}
			plain := id + "-bare"
			for _, c := range [][3]string{{bed.Directx, id, request}, {bed.Directx, id + "-none", "NO=REQUEST"}, {n.Plain(), plain, request}} {
				id := c[1]
				spec := n.Standalone(t, id)
				spec.Process.Env = append(spec.Process.Env, c[2])
				test.change(spec)
				err := n.Run(t, c[0], id, spec)
				if started := err == nil; started != (test.end != nil) {
					t.Fatalf("start %s: %v", id, err)
				}
				if test.end != nil {
					test.end(t, id)
				}
				n.MustLeaveNothing(t, id)
			}
			for _, id := range []string{id, id + "-none"} {
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

// testFlags runs ctr.exe with the flags of 'dxctl.exe flags', with runhcs alone, and
// compares it with a request to the shim.
func (n node) testFlags(t *testing.T) {
	first, second := n.GPUs[0], n.GPUs[1]
	for id, test := range map[string]struct {
		name, request string
		want          []bed.GPU
	}{
		"flags-all":   {"all GPUs", "all", n.GPUs},
		"flags-index": {"a GPU by index", "1", []bed.GPU{second}},
		"flags-luid":  {"a GPU by LUID", first.LUID.String(), []bed.GPU{first}},
		"flags-path":  {"a GPU by location path", second.LocationPath, []bed.GPU{second}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			flags, _ := n.Dxctl(t, 0, "flags", "--for", "ctr", "-o", "json", "--gpus", test.request)
			n.MustRunImage(t, bed.Runhcs, id, bed.Decode[[]string](t, flags)...)
			n.MustHave(t, id, test.want...)
			byShim := id + "-shim"
			n.MustRunImage(t, bed.Directx, byShim, "--env", "DIRECTX_VISIBLE_DEVICES="+test.request)
			n.MustEqualDocuments(t, id, byShim)
		})
	}
}
