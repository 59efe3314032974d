//go:build e2e && linux

// Package dxg proves live discovery on Linux with a test double of /dev/dxg, program
// double below it. It needs Linux, root, FUSE and the build tag e2e.
//
// FUSE has regular files only, and a container needs a device node. The double is
// therefore mounted on /dev/dxg in the mount namespaces of the programs that discover GPUs
// alone: dxctl and the advertiser. The NRI plugin, which reads the advertiser's record of
// them, and containerd see a device node there. No driver has its number: whether a
// container can use it is not shown.
package dxg

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"directx-nri/test/bed"
)

func TestMain(m *testing.M) {
	if bed.RunDir() != "" { // In the run's mount namespace.
		if err := prepare(); err != nil {
			fmt.Fprintln(os.Stderr, "prepare the run:", err)
			os.Exit(1)
		}
	}
	os.Exit(bed.Suite{
		Dirs:  []bed.Dir{{Path: "/var/lib/kubelet"}, {Path: "/run/containerd"}, {Path: wsl}},
		Check: bed.Parts.CheckNode,
	}.Main(m))
}

// wsl is the directory of user-mode drivers in WSL 2.
const wsl = "/usr/lib/wsl"

// prepare makes the run's own /dev, which has /dev/dxg, and the user-mode drivers.
func prepare() error {
	const ownDev = `set -e; dev="$0/dev"; mkdir "$dev"; mount -t tmpfs -o mode=755 dev "$dev"; cp -ax /dev/. "$dev"
mount --rbind /dev/pts "$dev/pts"; rm -f "$dev/dxg"; mknod -m 666 "$dev/dxg" c 61 0; mount --rbind "$dev" /dev`
	if out, err := exec.Command("sh", "-c", ownDev, bed.RunDir()).CombinedOutput(); err != nil {
		return fmt.Errorf("make /dev: %w: %s", err, out)
	}
	files := []string{"lib/libdxcore.so", "lib/libd3d12.so", "lib/libd3d12core.so", "lib/libcuda.so.1", "lib/nvidia-smi"}
	for _, a := range []adapter{nvidia, amd, intel, intelArc, npu} {
		files = append(files, "drivers/"+a.pkg+"/driver.so")
	}
	for _, file := range files {
		path := filepath.Join(wsl, file)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(file), 0o755)); err != nil {
			return err
		}
	}
	return nil
}

// double is a running double.
type double struct {
	testing.TB
	scenario, file string
}

// buildDouble builds the program and returns its path.
var buildDouble = sync.OnceValues(func() (string, error) {
	program := filepath.Join(bed.RunDir(), "double")
	build := exec.Command("go", "-C", "double", "build", "-buildvcs=false", "-o", program)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the double: %w: %s", err, out)
	}
	return program, nil
})

// start starts a double and ends it with the test.
func start(t testing.TB, s scenario) *double {
	t.Helper()
	program, err := buildDouble()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	d := &double{TB: t, scenario: filepath.Join(dir, "scenario.json"), file: filepath.Join(dir, "dxg")}
	d.set(s)
	if err := os.WriteFile(d.file, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, d.scenario, d.file)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // It may have ended.
		if err := cmd.Wait(); err != nil {
			t.Errorf("the double: %v", err)
		}
	})
	bed.Eventually(t, 10*time.Second, "the double is mounted", func() error {
		_, err := d.open()
		return err
	})
	return d
}

// set changes the scenario.
func (d *double) set(s scenario) {
	d.Helper()
	text, err := json.Marshal(s)
	if err == nil {
		err = errors.Join(os.WriteFile(d.scenario+".next", text, 0o644), os.Rename(d.scenario+".next", d.scenario))
	}
	if err != nil {
		d.Fatal(err)
	}
}

// open returns the numbers of open files and handles.
func (d *double) open() (string, error) {
	buffer := make([]byte, 100)
	n, err := unix.Getxattr(d.file, "user.open", buffer)
	return string(buffer[:max(n, 0)]), err
}

// mustBeClosed fails the test unless all files and handles of the double get closed, and
// none was left to the end of its file.
func (d *double) mustBeClosed() {
	d.Helper()
	d.mustBeOpen("files 0, handles 0, leaked 0")
}

// mustBeOpen fails the test unless the numbers of open files and handles begin with want.
func (d *double) mustBeOpen(want string) {
	d.Helper()
	// The kernel reports a close after the call.
	bed.Eventually(d, 5*time.Second, "files and handles are closed", func() error {
		open, err := d.open()
		if err == nil && !strings.HasPrefix(open, want) {
			err = errors.New(open)
		}
		return err
	})
}

// onDouble is a command that runs a program in a mount namespace where the double is
// /dev/dxg: its arguments are the double and the program with arguments.
const onDouble = `mount --bind "$0" /dev/dxg && exec "$@"`

// run runs a program on the double and returns what it prints.
func (d *double) run(program string, args ...string) string {
	d.Helper()
	cmd := exec.Command("unshare", append([]string{"--mount", "sh", "-c", onDouble, d.file, program}, args...)...)
	out, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return fmt.Sprintf("%sexit status %d\n", out, exit.ExitCode())
	} else if err != nil {
		d.Fatal(err)
	}
	return string(out)
}
