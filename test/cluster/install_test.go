//go:build e2e && linux

package cluster

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/directx-nri/directx-nri/advertiser/nodelabels"
	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/test/bed"
)

// offered is what the node offers with the values of the examples.
var offered = map[string]int{display: 8, compute: 4, t4: 4}

// wsl is the directory of user-mode drivers in WSL 2.
const wsl = "/usr/lib/wsl"

// adapters returns a scenario of the test double of /dev/dxg with NVIDIA GPUs.
func adapters(count int) any {
	list := make([]map[string]any, count)
	for i := range list {
		list[i] = map[string]any{
			"LUID": 0xC000 + i, "Description": "NVIDIA GPU", "Type": 1, "Vendor": 0x10DE, "Device": 0x249C, "Bus": 5 + i,
			"DriverStore": `C:\Windows\System32\HostDriverStore\FileRepository\nv.inf_amd64_1`,
		}
	}
	return map[string]any{"Adapters": list}
}

// testNoGPU installs the chart on a node without a GPU, and adds the driver and GPUs.
//
// The double is a regular file, which containers cannot have for a device. Only the
// advertiser has it for /dev/dxg. The node has a device that containers can open if they
// were given it, such as the driver's, and that is not one of those that all have.
func (s *suite) testNoGPU(t *testing.T) {
	for _, file := range []string{"lib/libdxcore.so", "lib/libcuda.so.1", "drivers/nv.inf_amd64_1/driver.so"} {
		bed.WriteFile(t, filepath.Join(wsl, file), "", 0o644)
	}
	buildNVIDIASMI(t)
	s.follow(t, "docs/wsl.md", "With the chart", "", "k3s ", "", "/run/k3s/", "/run/", "/etc/rancher/k3s/k3s.yaml", s.api.Kubeconfig, "linux-amd64", platform)
	s.rolledOut(t, daemonSet)
	pod := s.podOf(t, daemonSet)

	const fuse = 10<<8 | 229
	testutil.NoError(t, unix.Mknod("/dev/dxg", unix.S_IFCHR, fuse), os.Chmod("/dev/dxg", 0o666))
	t.Cleanup(func() { _ = os.Remove("/dev/dxg") })
	bed.Eventually(t, timeout, "the advertiser may ask the driver", func() error {
		log := s.kubectl(t, "logs", "--namespace", namespace, "daemonset/"+daemonSet, "--container", "advertiser")
		if !strings.Contains(log, "inappropriate ioctl for device") {
			return errors.New(log)
		}
		return nil
	})
	double := bed.StartDouble(t, adapters(1))
	mountIn(t, bed.FindProcess("directx-advertiser", ""), double.File, "/host/dev/dxg")
	s.waitOffered(t, map[string]int{display: 1})
	s.rolledOut(t, daemonSet)
	s.mustDescribe(t, "docs/windows.md")
	s.apply(t, podManifest("live", "ls "+wsl+"/lib/libcuda.so.1 "+wsl+"/drivers/nv.inf_amd64_1/driver.so && "+bed.Wait, map[string]int{display: 1}))
	s.waitRunning(t, "live")
	bed.MustContain(t, "pod live", s.containers(t, "live")["live/main"], `"luid":"0x00000000_0x0000C000"`, "/dev/dxg")
	s.mustDescribe(t, "docs/metrics.md")
	double.Set(adapters(2))
	s.waitOffered(t, map[string]int{display: 2})
	bed.Eventually(t, timeout, "the UUIDs of several GPUs are recorded", func() error {
		text, err := os.ReadFile("/var/lib/directx-nri/discovered.json")
		if err == nil && !strings.Contains(string(text), gpuUUID) {
			err = errors.New(string(text))
		}
		return err
	})
	s.remove(t, "live")
	s.mustBeSame(t, pod)
}

// mustDescribe fails the test unless a page's description of the node is what the page's command prints, with any numbers.
func (s *suite) mustDescribe(t *testing.T, page string) {
	t.Helper()
	_, sample, _ := strings.Cut(mustRead(t, filepath.Join(s.parts.Root, page)), "\n$ kubectl describe node NODE")
	sample, _, _ = strings.Cut(sample, "```")
	flags, sample, _ := strings.Cut(sample, "\n")
	got := s.run(t, "", "kubectl describe node "+nodeName+flags)
	pattern := strings.ReplaceAll(regexp.QuoteMeta(sample), "…", "(?s:.*)")
	for _, class := range []string{" +", `\d+\w*`} {
		pattern = regexp.MustCompile(class).ReplaceAllLiteralString(pattern, class)
	}
	if !regexp.MustCompile("^" + pattern + "$").MatchString(got) {
		t.Errorf("%s shows\n%s, but kubectl prints\n%s", page, sample, got)
	}
}

// gpuUUID is the UUID of adapters' first GPU.
const gpuUUID = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f5"

// buildNVIDIASMI builds a program that needs glibc's loader, as nvidia-smi does, and sees
// the driver where the VM has it.
func buildNVIDIASMI(t *testing.T) {
	t.Helper()
	source := filepath.Join(t.TempDir(), "smi.c")
	bed.WriteFile(t, source, `#include <stdio.h>
#include <unistd.h>
int main() { return access("/dev/dxg", F_OK) || access("/usr/lib/wsl/drivers", F_OK) || puts("00000000:05:00.0, `+gpuUUID+`\\n00000000:06:00.0, `+gpuUUID[:39]+`6") < 0; }`, 0o644)
	if out, err := exec.Command("cc", "-o", wsl+"/lib/nvidia-smi", source).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// mountIn mounts a file or directory on a path in the mount namespace of a process until the test ends.
func mountIn(t *testing.T, pid int, file, path string) {
	t.Helper()
	tree, err := unix.OpenTree(unix.AT_FDCWD, file, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	namespace, err2 := unix.Open(fmt.Sprintf("/proc/%d/ns/mnt", pid), unix.O_CLOEXEC, 0)
	inside := func(what string, call func() error) {
		done := make(chan error)
		go func() {
			runtime.LockOSThread() // The thread ends with this function.
			done <- errors.Join(unix.Unshare(unix.CLONE_FS), unix.Setns(namespace, unix.CLONE_NEWNS), call())
		}()
		if err := <-done; err != nil {
			t.Errorf("%s %s in process %d: %v", what, path, pid, err)
		}
	}
	testutil.NoError(t, err, err2)
	inside("mount", func() error { return unix.MoveMount(tree, "", unix.AT_FDCWD, path, unix.MOVE_MOUNT_F_EMPTY_PATH) })
	t.Cleanup(func() {
		inside("unmount", func() error { return unix.Unmount(path, unix.MNT_DETACH) })
		_, _ = unix.Close(tree), unix.Close(namespace)
	})
}

func (s *suite) testInstall(t *testing.T) {
	// Everything that the values of the examples leave off is on.
	notes := s.helmUpgrade(t, "--values", examples+"/values.yaml", "--set", "image.repository="+repository, "--set", "image.tag="+older,
		"--set", "linux.labels=true", "--set", "linux.doctor=true")
	s.rolledOut(t, daemonSet)
	s.waitOffered(t, offered)
	bed.Eventually(t, timeout, "the labels are written", func() error {
		labels, err := nodelabels.Read(featureFile)
		if want := "4"; labels[nodelabels.Prefix+"count"] != want {
			err = errors.Join(err, fmt.Errorf("the labels are %v", labels))
		}
		return err
	})
	if status := s.podOf(t, daemonSet).Status; restarts(status) > 0 {
		t.Errorf("containers of the DaemonSet's pod restarted: %v", status.ContainerStatuses)
	}
	// Among others, the notes have 'helm test' and 'dxctl doctor'.
	notes, _, _ = strings.Cut(notes, "To remove everything")
	notes = strings.NewReplacer("LINUX-POD", "daemonset/"+daemonSet, "POD", "daemonset/"+daemonSet).Replace(notes)
	script := strings.Join(regexp.MustCompile(`(?m)^ +(kubectl|helm) .+$`).FindAllString(notes, -1), "\n")
	bed.MustContain(t, "the notes' commands", script, "rollout status", "logs", "get nodes", "test "+release, "dxctl doctor")
	// No device of this node answers as a GPU, so the probe that 'helm test' runs fails and says so.
	script = regexp.MustCompile(`(?m)^ +(helm .+ test .+)$`).ReplaceAllString(script, `said=$$($1 --logs 2>&1) && exit 1; echo "$$said" | grep "dxctl: .*dxg"
kubectl -n directx-nri delete pod directx-nri-linux-test`)
	s.run(t, "", script)
}

// testExamples applies all Linux examples and compares their outputs with the expected
// ones.
func (s *suite) testExamples(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(s.parts.Root, examples, "*.yaml"))
	files = slices.DeleteFunc(files, func(file string) bool { return filepath.Base(file) == "values.yaml" })
	if err != nil || len(files) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	// Jobs come when the pods have their GPUs, because one pod requests two different GPUs.
	var pods, jobs []string
	for _, file := range files {
		if strings.Contains(mustRead(t, file), "kind: Job") {
			jobs = append(jobs, "--filename", file)
		} else {
			pods = append(pods, "--filename", file)
		}
	}
	t.Cleanup(func() {
		s.kubectl(t, slices.Concat([]string{"delete", "--wait", "--ignore-not-found"}, pods, jobs)...)
	})
	s.kubectl(t, append([]string{"apply"}, pods...)...)
	bed.Eventually(t, timeout, "the pods have their GPUs", func() error {
		pods, err := s.pods("default")
		for _, pod := range pods {
			if pod.Status.Phase == corev1.PodPending {
				err = fmt.Errorf("pod %s is pending: %v", pod.Name, pod)
			}
		}
		return err
	})
	s.kubectl(t, append([]string{"apply"}, jobs...)...)
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			pods := s.kubectl(t, "get", "--filename", file, "--output", "name")
			done := "jsonpath={.status.phase}=Succeeded"
			job, isJob := strings.CutPrefix(strings.TrimSpace(pods), "job.batch/")
			if isJob {
				done = "condition=complete"
			}
			s.kubectl(t, "wait", "--for", done, "--filename", file, "--timeout", timeout.String())
			if isJob {
				pods = s.kubectl(t, "get", "pods", "--selector", "job-name="+job, "--output", "name")
			}
			want := mustRead(t, strings.TrimSuffix(file, ".yaml")+".expected.txt")
			for _, pod := range strings.Fields(pods) {
				if got := s.kubectl(t, "logs", pod); !expected(want).MatchString(got) {
					t.Errorf("pod %s printed:\n%s\nwant:\n%s", pod, got, want)
				}
			}
		})
	}
}

// expected returns the pattern of an expected output: * stands for any characters, ? for
// one, and * as the last line for one or more lines.
func expected(text string) *regexp.Regexp {
	text, more := strings.CutSuffix(regexp.QuoteMeta(strings.TrimRight(text, "\n")), "\n"+regexp.QuoteMeta("*"))
	text = strings.NewReplacer(`\*`, `.*`, `\?`, `.`).Replace(text)
	if more {
		text += `\n(?s:.+)`
	}
	return regexp.MustCompile(`^` + text + `\n?$`)
}

// holders returns the names of the pods that hold all display GPUs.
func holders() []string {
	var names []string
	for i := range offered[display] {
		names = append(names, fmt.Sprintf("holder-%d", i))
	}
	return names
}

// testPending leaves pods that hold all display GPUs.
func (s *suite) testPending(t *testing.T) {
	var all string
	for _, name := range holders() {
		all += podManifest(name, bed.Wait, map[string]int{display: 1})
	}
	s.apply(t, all)
	s.waitRunning(t, holders()...)

	s.apply(t, podManifest("ninth", bed.Wait, map[string]int{display: 1}))
	bed.Eventually(t, timeout, "the ninth pod is unschedulable", func() error {
		pod, err := s.pod("ninth")
		if err == nil && !strings.Contains(pod.String(), "Insufficient "+display) {
			err = fmt.Errorf("it is not: %v", pod)
		}
		return err
	})
	s.remove(t, "holder-0")
	s.waitRunning(t, "ninth")
	s.remove(t, "ninth")
	s.apply(t, podManifest("holder-0", bed.Wait, map[string]int{display: 1}))
	s.waitRunning(t, "holder-0")
	s.holders = s.containers(t, holders()...)
	for name, container := range s.holders {
		bed.MustContain(t, name, container, "PCIROOT", "/dev/dxg")
	}
}

// testRefused starts a pod that must not start, and checks its events.
func (s *suite) testRefused(t *testing.T) {
	t.Cleanup(func() { s.remove(t, "no-plugin") })
	// The kubelet restarts the NRI plugin, which finds no socket to connect to.
	const socket, moved = "/run/nri/nri.sock", "/run/nri/moved.sock"
	testutil.NoError(t, os.Rename(socket, moved))
	if pid := bed.FindProcess("directx-nri", ""); pid == 0 || syscall.Kill(pid, syscall.SIGKILL) != nil {
		t.Fatalf("the plugin cannot be killed: process %d", pid)
	}
	s.apply(t, podManifest("no-plugin", bed.Wait, map[string]int{compute: 1}))
	bed.Eventually(t, timeout, "an event has the reason why the pod does not start", func() error {
		if pod, err := s.pod("no-plugin"); err != nil || pod.Running() == nil {
			t.Fatalf("the pod runs (%v)", err)
		}
		events := s.kubectl(t, "get", "events", "--field-selector", "type=Warning,involvedObject.name=no-plugin")
		if !strings.Contains(events, "NRI plugin") {
			return errors.New(events)
		}
		return nil
	})
	testutil.NoError(t, os.Rename(moved, socket))
	s.rolledOut(t, daemonSet)
	s.kubectl(t, "annotate", "pod", "no-plugin", "changed=now") // The kubelet tries again, before its 10 to 15 seconds.
	s.waitRunning(t, "no-plugin")
	bed.MustContain(t, "pod no-plugin", s.containers(t, "no-plugin")["no-plugin/main"], "PCIROOT", "/dev/dxg")
}
