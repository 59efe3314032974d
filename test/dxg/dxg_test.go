//go:build e2e && linux

// Package dxg proves discovery on Linux with a test double of /dev/dxg, program
// double below it. It needs Linux, root, FUSE and the build tag e2e.
//
// FUSE has regular files only, and a container needs a device node. The double is
// therefore mounted on /dev/dxg in the mount namespaces of the programs that discover GPUs
// alone: dxctl and the advertiser. The NRI plugin, which reads the advertiser's record of
// them, and containerd see a device node there. No driver has its number: whether a
// container can use it is not shown.
package dxg

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/test/bed"
)

func TestMain(m *testing.M) {
	if bed.RunDir() != "" { // In the run's mount namespace.
		if err := prepare(); err != nil {
			fmt.Fprintln(os.Stderr, "prepare the run:", err)
			os.Exit(1)
		}
	}
	os.Exit(bed.Suite{
		Dirs:  []bed.Dir{{Path: "/var/lib/kubelet"}, {Path: "/run/containerd"}, {Path: filepath.Dir(k3sSocket)}, {Path: wsl}},
		Check: bed.Parts.CheckNode,
	}.Main(m))
}

// k3sSocket is that of k3s's containerd.
const k3sSocket = "/run/k3s/containerd/containerd.sock"

// wsl is the directory of user-mode drivers in WSL 2.
const wsl = "/usr/lib/wsl"

// prepare makes the run's own /dev, which has /dev/dxg, and the user-mode drivers.
func prepare() error {
	err := errors.Join(bed.OwnDev(), unix.Mknod("/dev/dxg", unix.S_IFCHR|0o666, int(unix.Mkdev(61, 0))), os.Chmod("/dev/dxg", 0o666))
	return errors.Join(err, writeDrivers("/"))
}

// writeDrivers writes the user-mode drivers of a VM.
func writeDrivers(root string) error {
	files := []string{"lib/libdxcore.so", "lib/libd3d12.so", "lib/libd3d12core.so", "lib/libcuda.so.1", "lib/nvidia-smi", "drivers/" + npu.pkg + "/driver.dll"}
	for _, a := range []adapter{nvidia, amd, intel, intelArc} {
		files = append(files, "drivers/"+a.pkg+"/driver.so")
	}
	for _, file := range files {
		path := filepath.Join(root, wsl, file)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content(file)), 0o755)); err != nil {
			return err
		}
	}
	return nil
}

// content returns the content of a file of the user-mode drivers. nvidia-smi prints the
// UUIDs of GPUs on two buses.
func content(file string) string {
	if file == "lib/nvidia-smi" {
		return fmt.Sprintf("#!/bin/sh\nprintf '00000000:05:00.0, %s\\n00000000:06:00.0, %s\\n'\n", uuid(5), uuid(6))
	}
	return file
}

// uuid returns the UUID of NVIDIA's GPU on a bus.
func uuid(bus uint32) string {
	return fmt.Sprintf("GPU-8932f937-d72c-4106-c12f-20bd9faed9f%d", bus)
}

// double is a running double.
type double struct{ *bed.Double }

// start starts a double and ends it with the test.
func start(t testing.TB, s scenario) *double {
	t.Helper()
	d := &double{bed.StartDouble(t, s)}
	testutil.NoError(t, writeDrivers(d.Root))
	return d
}

// mustBeClosed fails the test unless all files of the double get closed.
func (d *double) mustBeClosed() {
	d.Helper()
	// The kernel reports a close after the call.
	bed.Eventually(d, 5*time.Second, "files are closed", func() error {
		open, err := d.Open()
		if err == nil && open != "files 0" {
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
	cmd := exec.Command("unshare", append([]string{"--mount", "sh", "-c", onDouble, d.File, program}, args...)...)
	out, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return fmt.Sprintf("%sexit status %d\n", out, exit.ExitCode())
	}
	testutil.NoError(d, err)
	return string(out)
}
