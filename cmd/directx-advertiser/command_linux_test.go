package main

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/directx-nri/directx-nri/advertiser/nodelabels"
	"github.com/directx-nri/directx-nri/discovery/node"
	"github.com/directx-nri/directx-nri/internal/testutil"
)

// TestReadOnlyStateDirectory: the program stays up, reports the cause, and recovers. The
// test runs itself in namespaces of its own, where an ordinary user can mount.
func TestReadOnlyStateDirectory(t *testing.T) {
	t.Parallel()
	const variable = "ADVERTISER_TEST_IN_NAMESPACE"
	if os.Getenv(variable) == "" {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestReadOnlyStateDirectory$") //nolint:gosec // This very program.
		cmd.Env = append(os.Environ(), variable+"=1")
		cmd.SysProcAttr = &unix.SysProcAttr{
			Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNS,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
		}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
		return
	}
	for name, ranBefore := range map[string]bool{"first start": false, "later start": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newProgram(t)
			const advertised = `directx_replicas{gpu="VMBUS\\0"`
			if ranBefore {
				stop := p.start()
				p.await("/metrics", 200, advertised)
				stop()
			} else if err := os.Mkdir(p.stateDir, 0o700); err != nil {
				t.Fatal(err)
			}
			mount := func(flags uintptr) {
				t.Helper()
				testutil.NoError(t, unix.Mount(p.stateDir, p.stateDir, "", flags, ""))
			}
			mount(unix.MS_BIND)
			t.Cleanup(func() { _ = unix.Unmount(p.stateDir, unix.MNT_DETACH) })
			mount(unix.MS_REMOUNT | unix.MS_BIND | unix.MS_RDONLY)
			p.start()
			p.await("/healthz", 200, "ok")
			p.await("/readyz", 503, "read-only file system")
			if left, err := filepath.Glob(filepath.Join(p.dir, "*.sock")); err != nil || len(left) > 0 {
				t.Errorf("resources are advertised: %v, %v", left, err)
			}
			mount(unix.MS_REMOUNT | unix.MS_BIND)
			p.await("/metrics", 200, advertised, "directx_config_last_reload_successful 1")
			// GPUs that could not be recorded are withdrawn. The first mount has open files.
			mount(unix.MS_BIND)
			mount(unix.MS_REMOUNT | unix.MS_BIND | unix.MS_RDONLY)
			p.await("/readyz", 503, "read-only file system")
			testutil.Eventually(t, "end of advertising", func() bool { return strings.Contains(p.log.String(), "cannot be allocated: ") })
		})
	}
}

// TestNoDriver: a node without /dev/dxg is ready, and its driver may be installed later.
func TestNoDriver(t *testing.T) {
	t.Parallel()
	p := newProgram(t)
	command := newCommand()
	command.SilenceErrors, command.SilenceUsage = true, true
	command.SetErr(io.Discard)
	labels := filepath.Join(p.dir, "labels")
	p.write(labels, nodelabels.Prefix+"count=1\n") // of an earlier run
	command.SetArgs([]string{"--config", p.configFile, "--state-dir", p.stateDir, "--host-root", p.dir, "--labels-file", labels, "--fail-on-init-error"})
	err := command.ExecuteContext(t.Context())
	if got, readErr := nodelabels.Read(labels); !errors.Is(err, node.ErrNoSource) || !errors.Is(readErr, fs.ErrNotExist) {
		t.Errorf("fail on init error: %v; labels %v, %v", err, got, readErr)
	}
	p.write(labels, nodelabels.Prefix+"count=1\n")
	p.start("--inventory=", "--host-root", p.dir, "--labels-file", labels)
	p.await("/readyz", 200, "ok")
	testutil.Eventually(t, "the labels are gone", func() bool {
		got, err := nodelabels.Read(labels)
		return err == nil && len(got) == 0
	})
	testutil.NoError(t, os.Mkdir(filepath.Join(p.dir, "dev"), 0o700))
	p.write(filepath.Join(p.dir, "dev/dxg"), "") // Its ioctls fail.
	p.await("/readyz", 503, "the kubelet does not watch")
	// The page changes before the GPUs are listed.
	testutil.Eventually(t, "the error is logged", func() bool { return strings.Contains(p.log.String(), "inappropriate ioctl") })
	if log := p.log.String(); strings.Count(log, "No GPU is advertised") != 1 {
		t.Error(log)
	}
}
