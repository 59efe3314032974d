//go:build e2e && linux

package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"

	"directx-nri/test/bed"
)

// TestByHand runs containers with what dxctl says, by the real ctr and the real
// bash.
func TestByHand(t *testing.T) {
	s := &standalone{Node: bed.Start(t, bed.Options{NoKubelet: true, Shim: true, Inventory: bed.NewInventory(2, 1)})}
	s.client = s.Client(t, bed.DefaultNamespace)
	t.Run("what has no flag is told, and the shim does it", s.testNoFlag)
	s.KeepDevicePaths(t)
	s.WriteNerdctlConfig(t)
	t.Run("side by side", func(t *testing.T) {
		for name, test := range map[string]func(*testing.T){
			"flags give what the shim gives":                       s.testFlags,
			"flags from a line that bash reads":                    s.testBash,
			"run passes all through":                               s.testDxctlRun,
			"run hands signals on":                                 s.testDxctlSignal,
			"flags for nerdctl give what the shim gives":           s.testNerdctlFlags,
			"run passes all through nerdctl":                       s.testNerdctlRun,
			"a dry run starts nothing":                             s.testDxctlDryRun,
			"the shown spec is the one that is run, byte for byte": s.testDxctlSpec,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				test(t)
			})
		}
	})
}

func (s *standalone) dxctl(t *testing.T, command string, args ...string) string {
	t.Helper()
	stdout, stderr, err := s.Dxctl(command, args...)
	if err != nil || stderr != "" {
		t.Fatalf("dxctl %s %q: %v\n%s", command, args, err, stderr)
	}
	return stdout
}

// testNoFlag has GPUs whose device nodes have another path in the container.
func (s *standalone) testNoFlag(t *testing.T) {
	stdout, stderr, err := s.Dxctl("flags", "--for", "ctr", "--index", "1")
	if exit := (&exec.ExitError{}); !errors.As(err, &exit) || exit.ExitCode() != 1 || stdout != "" || strings.Count(stderr, "\n") != 1 {
		t.Errorf("%v\n%s%s", err, stdout, stderr)
	}
	mustContain(t, "what dxctl prints", stderr, "ctr has no flag for it", s.Inventory.GPUs[1].ContainerPath(), "--with-shim", "DIRECTX_VISIBLE_DEVICES=1")
	s.CtrDetach(t, "no-flag", strings.Fields(s.dxctl(t, "flags", "--index", "1", "--with-shim", "-o", "args"))...)
	s.mustHave(t, "no-flag", 1)
}

// testFlags compares the spec of a container that ctr makes with dxctl's flags
// with that which the shim makes of a request.
func (s *standalone) testFlags(t *testing.T) {
	for id, request := range map[string]string{"all": "all", "one": "1", "two": "2,0"} {
		t.Run(id, func(t *testing.T) {
			t.Parallel()
			selection := []string{"--index", request}
			if request == "all" {
				selection = []string{"--all"}
			}
			var flags []string
			if err := json.Unmarshal([]byte(s.dxctl(t, "flags", append(selection, "-o", "json")...)), &flags); err != nil {
				t.Fatal(err)
			}
			s.CtrDetach(t, "flags-"+id, append([]string{"--runtime", bed.Runc}, flags...)...)
			s.run(t, "shim-"+id, env(request)...)
			s.mustBeAlike(t, "flags-"+id, "shim-"+id)
		})
	}
}

// mustBeAlike fails the test unless the container by hand, as ctr made it, is as
// the shim made the other.
func (s *standalone) mustBeAlike(t *testing.T, byHand, byShim string) {
	t.Helper()
	var hand, shim specs.Spec
	for id, spec := range map[string]*specs.Spec{byHand: &hand, byShim: &shim} {
		if err := json.Unmarshal(s.client.Started(t, id), spec); err != nil {
			t.Fatal(err)
		}
		spec.Linux.CgroupsPath = ""
		spec.Process.Env = slices.DeleteFunc(spec.Process.Env, func(v string) bool { return strings.HasPrefix(v, "DIRECTX_VISIBLE_DEVICES=") })
		slices.SortFunc(spec.Mounts, func(a, b specs.Mount) int { return strings.Compare(a.Destination, b.Destination) })
	}
	if len(shim.Linux.Devices) == 0 || len(shim.Mounts) < 10 {
		t.Errorf("the shim gives %d devices and %d mounts", len(shim.Linux.Devices), len(shim.Mounts))
	}
	// The one thing that ctr has no flag for: it lets the container make nodes.
	own := map[[2]int64]bool{}
	for _, d := range shim.Linux.Devices {
		own[[2]int64{d.Major, d.Minor}] = true
	}
	for i, rule := range hand.Linux.Resources.Devices {
		if rule.Major != nil && rule.Minor != nil && own[[2]int64{*rule.Major, *rule.Minor}] {
			if rule.Access != "rwm" {
				t.Errorf("ctr gives access %q", rule.Access)
			}
			hand.Linux.Resources.Devices[i].Access = "rw"
		}
	}
	sortRules := func(spec *specs.Spec) {
		slices.SortFunc(spec.Linux.Resources.Devices, func(a, b specs.LinuxDeviceCgroup) int { return strings.Compare(text(a), text(b)) })
	}
	sortRules(&hand)
	sortRules(&shim)
	if diff := cmp.Diff(shim, hand); diff != "" {
		t.Errorf("the specs differ (-shim +by hand):\n%s", diff)
	}
}

func text(v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(data)
}

// testBash pastes the flags into a command line. The paths of this node have
// nothing in them that bash would not leave alone, so one with more is added.
func (s *standalone) testBash(t *testing.T) {
	flags := strings.TrimSpace(s.dxctl(t, "flags", "--for", "ctr", "--all", "--shell", "bash"))
	line := strings.Join(slices.Concat(
		[]string{"exec", s.CtrFile(), "--address", s.Address(), "run", "--rm"}, s.CtrRunFlags("bash"),
		[]string{flags, "--env", "'HARD=a b#(c)&\"'", bed.Image, "bash", "/bin/sh", "-c", "'ls /usr/lib/wsl/lib; echo \"$HARD\"'"}), " ")
	out, err := exec.Command("bash", "-c", line).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", line, err, out)
	}
	mustContain(t, "the container", string(out), "libd3d12.so\nlibdxcore.so\n", `a b#(c)&"`)
}

// testDxctlRun looks at what a terminal would see, and at the exit status.
func (s *standalone) testDxctlRun(t *testing.T) {
	library := s.Inventory.GPUs[0].Mounts(s.Dir)[0]
	for id, test := range map[string]struct {
		flags  []string
		script string
		status int
		output string
	}{
		"run-well":   {[]string{"--all"}, "read typed; echo got $typed; cat " + library.Destination, 0, "got it\ndata of " + library.Source + "\n"},
		"run-status": {[]string{"--index", "0"}, "echo told >&2; exit 7", 7, ""},
		"run-shim":   {[]string{"--index", "0", "--with-shim"}, "cat " + library.Destination, 0, "data of " + library.Source + "\n"},
	} {
		t.Run(id, func(t *testing.T) {
			t.Parallel()
			cmd := s.DxctlCommand("run", slices.Concat(test.flags, []string{"--address", s.Address(), "--"},
				s.CtrRunFlags(id), []string{"--rm", bed.Image, id, "/bin/sh", "-c", test.script})...)
			var out, errs bytes.Buffer
			cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader("it\n"), &out, &errs
			err := cmd.Run()
			if exit := (&exec.ExitError{}); err != nil && !errors.As(err, &exit) {
				t.Fatal(err)
			}
			if status := cmd.ProcessState.ExitCode(); status != test.status || out.String() != test.output {
				t.Errorf("status %d, want %d; output\n%s\nwant\n%s\nerrors %s", status, test.status, &out, test.output, &errs)
			}
			if !strings.HasPrefix(errs.String(), s.CtrFile()+" --address "+s.Address()+" run --") {
				t.Errorf("the command is not printed: %s", &errs)
			}
			if test.status != 0 && (!strings.Contains(errs.String(), "told\n") || strings.Contains(errs.String(), "dxctl:")) {
				t.Errorf("errors %s", &errs)
			}
		})
	}
}

// testDxctlSignal ends a container by ending dxctl. ctr hands signals on from
// shortly after the container's start only, and until then they end itself.
func (s *standalone) testDxctlSignal(t *testing.T) {
	t.Cleanup(func() { s.CtrRemove(t, "signal") })
	cmd := s.DxctlCommand("run", slices.Concat([]string{"--index", "0", "--address", s.Address(), "--"}, s.CtrRunFlags("signal"),
		[]string{"--rm", bed.Image, "signal", "/bin/sh", "-c", "trap 'exit 9' TERM; sleep 2; echo ready; while :; do sleep 0.1; done"})...)
	output, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(output).ReadString('\n'); err != nil || line != "ready\n" {
		t.Errorf("%q, %v", line, err)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	_, _ = io.Copy(io.Discard, output)
	_ = cmd.Wait()
	if status := cmd.ProcessState.ExitCode(); status != 9 {
		t.Errorf("status %d, want that of the container's trap", status)
	}
	if traces := s.client.Traces("signal"); len(traces) > 0 {
		t.Errorf("it left %v", traces)
	}
}

func (s *standalone) testDxctlDryRun(t *testing.T) {
	out := s.dxctl(t, "run", "--index", "0", "--dry-run", "--address", s.Address(), "--", bed.Image, "dry", "a b")
	if !strings.HasPrefix(out, "ctr --address "+s.Address()+" run --device "+s.DeviceNode(s.Inventory.GPUs[0])+" --mount ") ||
		!strings.HasSuffix(out, bed.Image+" dry 'a b'\n") || strings.Count(out, "\n") != 1 {
		t.Errorf("%s", out)
	}
	if traces := s.client.Traces("dry"); len(traces) > 0 {
		t.Errorf("there is %v", traces)
	}
}

// testDxctlSpec asks what the shim would do to specs that it was then given.
func (s *standalone) testDxctlSpec(t *testing.T) {
	for id, flags := range map[string][]string{"spec-all": env("all"), "spec-one": annotation("1"), "spec-none": nil} {
		t.Run(id, func(t *testing.T) {
			t.Parallel()
			s.run(t, id, flags...)
			cmd := s.DxctlCommand("spec", "-", "-o", "spec", "--id", id)
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
func (s *standalone) testNerdctlFlags(t *testing.T) {
	flags := strings.Split(strings.TrimSpace(s.dxctl(t, "flags", "--for", "nerdctl", "--index", "0,2", "-o", "args")), "\n")
	out, err := s.Nerdctl(slices.Concat([]string{"run", "--detach"}, s.NerdctlRunFlags("nerdctl-flags"), flags,
		[]string{bed.Image, "/bin/sh", "-c", "sleep 600"})...)
	t.Cleanup(func() {
		if out, err := s.Nerdctl("rm", "--force", "nerdctl-flags"); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	})
	if err != nil {
		t.Fatalf("nerdctl run %q: %v\n%s", flags, err, out)
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	s.run(t, "nerdctl-shim", env("0,2")...)
	hand, shim := s.given(t, lines[len(lines)-1]), s.given(t, "nerdctl-shim")
	if len(shim.devices) != 2 || len(shim.mounts) < 4 {
		t.Errorf("the shim gives %+v", shim)
	}
	if diff := cmp.Diff(text(shim.devices)+text(shim.rules), text(hand.devices)+text(hand.rules)); diff != "" {
		t.Errorf("devices (-shim +by hand):\n%s", diff)
	}
	// Of options, nerdctl has no flag for two.
	for destination, m := range shim.mounts {
		m.Options = slices.DeleteFunc(m.Options, func(o string) bool { return o == "nosuid" || o == "nodev" })
		got := hand.mounts[destination]
		slices.Sort(m.Options)
		slices.Sort(got.Options)
		if diff := cmp.Diff(m, got); diff != "" {
			t.Errorf("mount %s (-shim +by hand):\n%s", destination, diff)
		}
	}
	if len(hand.mounts) != len(shim.mounts) {
		t.Errorf("mounts %v, with the shim %v", hand.mounts, shim.mounts)
	}
}

// gpuParts is what a container's spec has of GPUs.
type gpuParts struct {
	devices []specs.LinuxDevice
	rules   []specs.LinuxDeviceCgroup
	mounts  map[string]specs.Mount
}

// given returns them of a container that runs.
func (s *standalone) given(t *testing.T, id string) gpuParts {
	t.Helper()
	var spec specs.Spec
	if err := json.Unmarshal(s.client.Started(t, id), &spec); err != nil {
		t.Fatal(err)
	}
	g := gpuParts{mounts: map[string]specs.Mount{}}
	for _, d := range spec.Linux.Devices {
		if strings.HasPrefix(d.Path, s.Dir) {
			g.devices = append(g.devices, d)
			for _, rule := range spec.Linux.Resources.Devices {
				if rule.Major != nil && rule.Minor != nil && *rule.Major == d.Major && *rule.Minor == d.Minor {
					g.rules = append(g.rules, rule)
				}
			}
		}
	}
	for _, m := range spec.Mounts {
		if strings.HasPrefix(m.Destination, "/usr/lib/wsl/") {
			g.mounts[m.Destination] = m
		}
	}
	return g
}

// testNerdctlRun looks at what a terminal would see, with the shim and without.
func (s *standalone) testNerdctlRun(t *testing.T) {
	library := s.Inventory.GPUs[1].Mounts(s.Dir)[2]
	for name, flags := range map[string][]string{"nerdctl-run": nil, "nerdctl-run-shim": {"--with-shim"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := s.DxctlCommand("run", slices.Concat([]string{"--for", "nerdctl", "--index", "1"}, flags, []string{"--"},
				s.NerdctlRunFlags(name), []string{"--rm", bed.Image, "/bin/sh", "-c", "cat " + library.Destination + "; exit 5"})...)
			var out, errs bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &errs
			_ = cmd.Run()
			if status := cmd.ProcessState.ExitCode(); status != 5 || out.String() != "data of "+library.Source+"\n" || strings.Contains(errs.String(), "dxctl:") {
				t.Errorf("status %d\n%s\n%s", status, &out, &errs)
			}
		})
	}
}
