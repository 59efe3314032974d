//go:build e2e && linux

package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/test/bed"
)

// A standalone container's request, as a flag of `ctr run`. The variable has no effect
// unless the configuration says so.
func env(request string) []string { return []string{"--env", "DIRECTX_VISIBLE_DEVICES=" + request} }
func annotation(request string) []string {
	return []string{"--annotation", "directx.microsoft.com/visible-devices=" + request}
}

// TestStandalone runs containers without Kubernetes, through the runtime shim
// alone: two GPUs for display and one for compute.
func TestStandalone(t *testing.T) {
	s := start(t, bed.Options{NoKubelet: true, Shim: true, Inventory: bed.NewInventory(2, 1)})
	sideBySide(t, map[string]func(*testing.T){
		"a request gives what it names":                           s.testRequests,
		"the container sees its GPU, and cannot change its files": s.testInside,
		"without a request the spec is the client's own":          s.testUntouched,
		"a shim that is killed is cleaned up after":               s.testDeadShim,
	})
	// These change the node.
	t.Run("containerd is restarted under running containers", s.testContainerdRestart)
	t.Run("the shim is removed under a running container", s.testRemoved)
}

// sideBySide runs tests concurrently, and returns when all have ended.
func sideBySide(t *testing.T, tests map[string]func(*testing.T)) {
	t.Run("side by side", func(t *testing.T) {
		for name, test := range tests {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				test(t)
			})
		}
	})
}

// run starts a container by ctr through the shim.
func (s *suite) run(t *testing.T, id string, flags ...string) {
	t.Helper()
	s.CtrDetach(t, id, append([]string{"--runtime", bed.DirectX}, flags...)...)
}

// mustHave fails the test unless a running container has exactly the given GPUs.
func (s *suite) mustHave(t *testing.T, id string, gpus ...int) bed.View {
	t.Helper()
	view := s.client.View(t, id)
	if err := s.Compare(view, gpus...); err != nil {
		t.Errorf("container %s: %v", id, err)
	}
	return view
}

func (s *suite) testRequests(t *testing.T) {
	for i, row := range []struct {
		flags []string
		want  []int
	}{
		{annotation("all"), []int{0, 1, 2}},
		{annotation(s.Inventory.GPUs[2].LocationPath()), []int{2}},
		{append(env("0"), annotation("1")...), []int{1}},
	} {
		id := fmt.Sprint("request-", i)
		s.run(t, id, row.flags...)
		s.mustHave(t, id, row.want...)
	}
}

// testInside runs a script in a container.
func (s *suite) testInside(t *testing.T) {
	gpu, other := s.Inventory.GPUs[1], s.Inventory.GPUs[0]
	library := gpu.Mounts(s.Dir)[0]
	script := fmt.Sprintf(`ls /dev
cat %[1]s
cat %[2]s
echo changed >%[2]s
mknod /tmp/own c 61 %[3]d && cat /tmp/own
true`, gpu.ContainerPath(), library.Destination, other.Index)
	out, err := s.CtrRun("inside", script, append([]string{"--runtime", bed.DirectX}, annotation("1")...)...)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	// The node has no driver, which the kernel reports to those only who may use it.
	bed.MustContain(t, "the output of the container", out, gpu.ContainerPath()+"': No such device or address", "data of "+library.Source,
		library.Destination+": Read-only file system", "/tmp/own': Operation not permitted")
	if strings.Contains(out, filepath.Base(other.ContainerPath())+"\n") {
		t.Errorf("the container has the other GPU's node:\n%s", out)
	}
	if traces := s.client.Traces("inside"); len(traces) > 0 {
		t.Errorf("a container that has ended and was removed left %v", traces)
	}
}

// mustRefuse fails the test unless a container does not start, the error has the reason, and
// nothing is left of it.
func (s *suite) mustRefuse(t *testing.T, id string, flags []string, why ...string) {
	t.Helper()
	out, err := s.CtrRun(id, "echo it runs", flags...)
	if err == nil {
		t.Fatalf("the container ran: %s", out)
	}
	bed.MustContain(t, "what ctr prints", out, append(why, id)...)
	if traces := s.client.Traces(id); len(traces) > 0 {
		t.Errorf("a refused container left %v", traces)
	}
}

// testUntouched compares what stands in the bundle with what the same command
// leaves there without our shim.
func (s *suite) testUntouched(t *testing.T) {
	for id, flags := range map[string][]string{
		"untouched-nothing": nil,
		"untouched-none":    annotation("none"),
		"untouched-image":   env("all"),
	} {
		t.Run(id, func(t *testing.T) {
			t.Parallel()
			s.CtrDetach(t, id, append([]string{"--runtime", bed.Runc}, flags...)...)
			spec, files := s.client.Started(t, id), s.bundleFiles(t, id)
			s.CtrRemove(t, id)
			s.run(t, id, flags...)
			if !bytes.Equal(s.client.Started(t, id), spec) {
				t.Errorf("the spec is not that of the runc shim\nwithout ours: %s\nwith ours:    %s", spec, s.client.Started(t, id))
			}
			if got := s.bundleFiles(t, id); got != files {
				t.Errorf("the bundle holds %s, without our shim %s", got, files)
			}
		})
	}
}

// bundleFiles returns the names and modes of what is in a container's bundle.
func (s *suite) bundleFiles(t *testing.T, id string) string {
	t.Helper()
	out, err := exec.Command("sh", "-c", `cd "$1" && stat -c '%n %A' *`, "sh", s.client.Bundle(id)).CombinedOutput()
	testutil.NoError(t, err)
	return string(out)
}

// testDeadShim kills the shim process of a container. containerd then cleans up with the shim's
// action "delete", which alone removes runc's state.
func (s *suite) testDeadShim(t *testing.T) {
	const id = "dead-shim"
	s.run(t, id, annotation("all")...)
	view := s.client.View(t, id)
	if shim := bed.FindShim(id); shim == 0 || syscall.Kill(shim, syscall.SIGKILL) != nil {
		t.Fatalf("the shim cannot be killed: process %d", shim)
	}
	bed.Eventually(t, 20*time.Second, "nothing is left of the task", func() error {
		if traces := s.client.TaskTraces(id); len(traces) > 0 {
			return fmt.Errorf("there is %v", traces)
		}
		return nil
	})
	if err := syscall.Kill(view.PID, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("the container's process is still there: %v", err)
	}
	if out, err := s.Ctr("container", "rm", id); err != nil {
		t.Errorf("remove the container: %v\n%s", err, out)
	}
}

// testContainerdRestart kills containerd under running containers.
func (s *suite) testContainerdRestart(t *testing.T) {
	s.run(t, "restart", annotation("all")...)
	s.run(t, "restart-plain")
	before := s.mustHave(t, "restart", 0, 1, 2)
	s.Containerd.Kill(t)
	s.Containerd.Start(t)
	s.WaitContainerd(t)
	if after := s.mustHave(t, "restart", 0, 1, 2); after.PID != before.PID {
		t.Errorf("the container's process was %d and is %d", before.PID, after.PID)
	}
	for _, id := range []string{"restart", "restart-plain"} {
		if out, err := s.Ctr("task", "exec", "--exec-id", "ls", id, "ls", "/"); err != nil {
			t.Errorf("run a command in container %s: %v\n%s", id, err, out)
		}
		s.end(t, id)
	}
	s.run(t, "restart-new", annotation("1")...)
	s.mustHave(t, "restart-new", 1)
}

// end kills a container's task, and removes task and container, by ctr.
func (s *suite) end(t *testing.T, id string) {
	t.Helper()
	if out, err := s.Ctr("task", "kill", "--signal", "SIGTERM", id); err != nil {
		t.Errorf("kill container %s: %v\n%s", id, err, out)
	}
	if status, err := s.client.Wait(id); err != nil || status != 0 {
		t.Errorf("container %s ended with status %d, %v, want 0", id, status, err)
	}
	for _, args := range [][]string{{"task", "rm", id}, {"container", "rm", id}} {
		if out, err := s.Ctr(args...); err != nil {
			t.Errorf("ctr %v: %v\n%s", args, err, out)
		}
	}
	if traces := s.client.Traces(id); len(traces) > 0 {
		t.Errorf("container %s was removed and left %v", id, traces)
	}
}

// testRemoved removes the shim under a running container.
func (s *suite) testRemoved(t *testing.T) {
	s.run(t, "removed", annotation("all")...)
	before := s.mustHave(t, "removed", 0, 1, 2)
	testutil.NoError(t, os.Remove(s.ShimFile()))
	if after := s.mustHave(t, "removed", 0, 1, 2); after.PID != before.PID {
		t.Errorf("the container's process was %d and is %d", before.PID, after.PID)
	}
	s.end(t, "removed")
}
