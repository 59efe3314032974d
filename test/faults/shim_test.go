//go:build e2e && linux

package faults

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"directx-nri/internal/shimfile"
	"directx-nri/test/bed"
)

// TestShimKilled kills the runtime shim before and after each system call of a start with
// a request. The bundle must be untouched or complete, and the next start must work.
func TestShimKilled(t *testing.T) {
	n := bed.Start(t, bed.Options{NoKubelet: true, Inventory: bed.NewInventory(2, 0)})
	n.Containerd.Terminate(t) // The tracer waits for any child.
	dir := t.TempDir()
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Fatal(err)
	}
	// It takes the place of the real shim, and does nothing.
	nothing := filepath.Join(dir, "true")
	if err := os.Symlink(busybox, nothing); err != nil {
		t.Fatal(err)
	}
	environment := n.ShimEnvironment(t, "shim: {runtime: "+nothing+"}")
	request := bed.Standalone{ID: "killed", Annotations: map[string]string{"directx.microsoft.com/visible-devices": "1"}}
	given, err := json.Marshal(request.Spec("/killed"))
	if err != nil {
		t.Fatal(err)
	}
	bundle := filepath.Join(dir, "bundle")
	config := filepath.Join(bundle, "config.json")
	reset := func() {
		t.Helper()
		if err := os.RemoveAll(bundle); err != nil {
			t.Fatal(err)
		}
		if err := os.Mkdir(bundle, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(config, given, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	shim := func() *exec.Cmd {
		cmd := exec.Command(n.Product(shimfile.Name()), "-namespace", "default", "-address", "/none", "-id", "killed", "start")
		cmd.Dir, cmd.Env = bundle, append(os.Environ(), environment)
		return cmd
	}
	started := func() []byte {
		t.Helper()
		spec, err := os.ReadFile(config)
		if err != nil {
			t.Fatal(err)
		}
		return spec
	}
	reset()
	if out, err := shim().CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	complete := started()
	if bytes.Equal(given, complete) {
		t.Fatal("the shim did not edit the spec")
	}
	killed, untouched := 0, 0
	// The number of system calls of a Go program varies.
	for stop, ended := 1, 0; ended < 20; stop++ {
		reset()
		if !killAt(t, shim(), stop) {
			ended++
			continue
		}
		ended = 0
		killed++
		after := started()
		if bytes.Equal(after, given) {
			untouched++
		} else if !bytes.Equal(after, complete) {
			t.Fatalf("killed at stop %d, the shim left this spec: %s", stop, after)
		}
		if out, err := shim().CombinedOutput(); err != nil {
			t.Fatalf("a start after one that was killed at stop %d: %v: %s", stop, err, out)
		}
		if !bytes.Equal(started(), complete) {
			t.Fatalf("a start after one that was killed at stop %d made another spec: %s", stop, started())
		}
	}
	t.Logf("%d starts were killed: %d bundles were untouched", killed, untouched)
	if untouched == 0 || untouched == killed {
		t.Errorf("%d of %d bundles were untouched, want some", untouched, killed)
	}
}

// killAt runs a program and kills it at the stop of that number: before and after each
// system call of any of its threads. It returns false if the program ended before.
// https://man7.org/linux/man-pages/man2/ptrace.2.html
func killAt(t *testing.T, cmd *exec.Cmd, number int) bool {
	t.Helper()
	runtime.LockOSThread() // Requests must come from the thread that traces.
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Release() }()
	program := cmd.Process.Pid
	var status unix.WaitStatus
	if _, err := unix.Wait4(program, &status, 0, nil); err != nil || !status.Stopped() {
		t.Fatalf("the program does not stop at its start: %v, %v", status, err)
	}
	if err := unix.PtraceSetOptions(program, unix.PTRACE_O_TRACESYSGOOD|unix.PTRACE_O_TRACECLONE|unix.PTRACE_O_EXITKILL); err != nil {
		t.Fatal(err)
	}
	thread, deliver, stops, killed := program, 0, 0, false
	for {
		// A thread that was killed meanwhile cannot be resumed.
		if err := unix.PtraceSyscall(thread, deliver); err != nil && err != unix.ESRCH {
			t.Fatal(err)
		}
		var err error
		if thread, err = unix.Wait4(-1, &status, unix.WALL, nil); err != nil {
			t.Fatal(err)
		}
		deliver = 0
		switch {
		case status.Exited() || status.Signaled():
			if thread == program {
				return killed
			}
		case status.StopSignal() == unix.SIGTRAP|0x80:
			if stops++; stops == number {
				killed = true
				if err := unix.Kill(program, unix.SIGKILL); err != nil {
					t.Fatal(err)
				}
			}
		case status.StopSignal() != unix.SIGTRAP && status.StopSignal() != unix.SIGSTOP:
			deliver = int(status.StopSignal())
		}
	}
}
