//go:build e2e && linux

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/directx-nri/directx-nri/decision"
	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/test/bed"
)

// extraMounts is a node that allows extra mounts from one of its directories.
type extraMounts struct {
	*suite
	// tools is the directory, more the rest of the configuration.
	tools, more string
}

// startExtraMounts starts a node with one GPU, and with the files that tests request.
func startExtraMounts(t *testing.T, options bed.Options) *extraMounts {
	t.Helper()
	// The configuration refuses directories in /tmp.
	const share = "/mnt"
	e := &extraMounts{tools: share + "/tools", more: options.Config}
	options.Replicas, options.Inventory = 32, bed.NewInventory(1, 0)
	options.Config = e.policy("host-directories")
	e.suite = start(t, options)
	bed.MountDisk(t, share, 1<<20)
	for path, content := range map[string]string{"tools/tool": "the tool\n", "tools/second": "the second\n", "tools/sub/deep": "deep\n", "secret": "secret\n"} {
		bed.WriteFile(t, filepath.Join(filepath.Dir(e.tools), path), content, 0o666)
	}
	for name, target := range map[string]string{"away": "../secret", "within": "sub/deep"} {
		testutil.NoError(t, os.Symlink(target, filepath.Join(e.tools, name)))
	}
	return e
}

// policy returns a configuration with this value of extraMounts.sources.
func (e *extraMounts) policy(sources string) string {
	return fmt.Sprintf("extraMounts:\n  sources: %s\n  hostDirectories: [%s]\n  destinations: [/usr/lib/wsl/lib, /srv/tools]\n  max: 3\n%s", sources, e.tools, e.more)
}

// refused returns a request for a file that the node allows and one that leads out, and parts of the error. Unit tests
// have the other reasons.
func (e *extraMounts) refused() (list string, parts []string) {
	return e.tools + "/tool\n" + e.tools + "/away", []string{"tools/away", decision.ExtraMountsAnnotation}
}

// granted returns a request with each allowed form of an entry, and the content of the
// container's files by path.
func (e *extraMounts) granted() (list string, inside map[string]string) {
	return fmt.Sprintf(`[{"source": "%[1]s/tool", "destination": "/srv/tools/tool"}, "%[1]s/within"]`, e.tools),
		map[string]string{"/srv/tools/tool": "the tool", "/usr/lib/wsl/lib/within": "deep"}
}

// mustSee fails the test unless a container, in which exec runs scripts, has the files
// and cannot change them.
func (e *extraMounts) mustSee(t *testing.T, files map[string]string, exec func(script string) string) {
	t.Helper()
	for path, content := range files {
		out := exec(fmt.Sprintf("cat %[1]s; echo changed >%[1]s; rm -f %[1]s; cat %[1]s", path))
		if strings.Count(out, content+"\n") != 2 || !strings.Contains(out, "Read-only file system") {
			t.Errorf("in the container, %s is not a file with %q and cannot be changed:\n%s", path, content, out)
		}
	}
	if content, err := os.ReadFile(filepath.Join(e.tools, "tool")); err != nil || string(content) != "the tool\n" {
		t.Errorf("the node's own file holds %q (%v)", content, err)
	}
}

// inPod returns what runs a script in a container of a pod.
func (e *extraMounts) inPod(t *testing.T, pod, container string) func(script string) string {
	return func(script string) string {
		out, _ := bed.Exec(t, e.CRI, e.ContainerID(t, pod, container), script)
		return out
	}
}

// extraMountsPod returns a pod with a GPU and a request for extra mounts.
func extraMountsPod(name, key, list string) bed.Pod {
	pod := bed.GPUPod(name, 1)
	pod.Annotations = map[string]string{key: list}
	return pod
}

// bound returns the names of the pods that a record is bound to.
func (s *suite) bound(t *testing.T) (pods []string) {
	t.Helper()
	for _, entry := range s.records(t) {
		if entry.Holder != nil {
			pods = append(pods, entry.Holder.PodName)
		}
	}
	return pods
}

// TestExtraMounts requests extra mounts by annotation.
func TestExtraMounts(t *testing.T) {
	e := startExtraMounts(t, bed.Options{})
	list, inside := e.granted()
	const key = decision.ExtraMountsAnnotation
	t.Run("a pod's and a container's request", func(t *testing.T) {
		both := e.Apply(t, bed.Pod{
			Name:        "both",
			Annotations: map[string]string{key: list, key + ".extra": `[{"source": "` + e.tools + `/second", "destination": "/srv/tools/second"}]`, key + ".none": "/etc/shadow"},
			Containers:  []bed.Container{{Name: "main", Display: 1}, {Name: "extra", Display: 1}, {Name: "plain"}},
		})
		own := e.Apply(t, extraMountsPod("own", key+".main", list))
		e.WaitRunning(t, both, own)
		e.mustSee(t, inside, e.inPod(t, own, "main"))
		e.mustSee(t, inside, e.inPod(t, both, "main"))
		e.mustSee(t, inside, e.inPod(t, both, "extra"))
		e.mustSee(t, map[string]string{"/srv/tools/second": "the second"}, e.inPod(t, both, "extra"))
		for container, files := range map[string]string{"main": "/srv/tools/second", "plain": "/srv /usr/lib/wsl"} {
			if out, status := bed.Exec(t, e.CRI, e.ContainerID(t, both, container), "ls -d "+files); status == 0 {
				t.Errorf("container %s, which did not ask for that, has %s", container, out)
			}
		}
		e.Crash(t, both, "extra")
		e.mustSee(t, map[string]string{"/srv/tools/second": "the second"}, e.inPod(t, both, "extra"))
	})

	t.Run("what is not allowed", func(t *testing.T) {
		list, parts := e.refused()
		pod := e.Apply(t, extraMountsPod("refused", key, list))
		bed.MustContain(t, "the event", e.WaitNotStarted(t, pod, "main", 0), append(parts, `container "main" of pod default/`+pod)...)
		e.MustNotRun(t, pod)
		if slices.Contains(e.bound(t), pod+"-"+bed.Name) {
			t.Errorf("an allocation is bound to the refused container of %s", pod)
		}
		e.Remove(t, pod)
		next := e.RunPod(t, bed.GPUPod("next", 1))
		if !slices.Contains(e.bound(t), next+"-"+bed.Name) {
			t.Errorf("no record is bound to pod %s, so that nothing was seen before", next)
		}
	})

	t.Run("another policy holds for the next container", func(t *testing.T) {
		e.Configure(t, e.policy("none"), nil)
		pod := e.Apply(t, extraMountsPod("policy", key, e.tools+"/tool"))
		bed.MustContain(t, "the event", e.WaitNotStarted(t, pod, "main", 0), "default/"+pod)
		// The allocation can still be used.
		e.Configure(t, e.policy("host-directories"), nil)
		e.SyncPods(t, pod)
		e.WaitRunning(t, pod)
		e.mustSee(t, map[string]string{"/usr/lib/wsl/lib/tool": "the tool"}, e.inPod(t, pod, "main"))
	})
}

// TestStandaloneExtraMounts requests extra mounts with ctr's flags, through the runtime shim.
func TestStandaloneExtraMounts(t *testing.T) {
	e := startExtraMounts(t, bed.Options{NoKubelet: true, Shim: true, Config: "standalone: {environment: true}\n"})
	with := func(list string) []string {
		return []string{"--runtime", bed.DirectX, "--env", "DIRECTX_VISIBLE_DEVICES=all", "--annotation", decision.ExtraMountsAnnotation + "=" + list}
	}
	list, inside := e.granted()
	e.mustSee(t, inside, func(script string) string {
		out, err := e.CtrRun(fmt.Sprintf("allowed-%x", len(script)), script+"; true", with(list)...)
		if err != nil {
			t.Errorf("ctr run: %v\n%s", err, out)
		}
		return out
	})
	list, why := e.refused()
	e.mustRefuse(t, "refused", with(list), why...)
}
