//go:build e2e && windows

// Package windows has, on Windows itself, the product with the installed containerd and the
// Host Compute Service. The files for Linux have the suite under Wine, which also records
// what that service gets.
//
// As an administrator, with containerd in its usual directory:
//
//	go test -tags e2e -v ./test/windows
package windows

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/windows"

	"directx-nri/discovery"
)

// products returns the directory of the product's programs. They are built unless
// DIRECTX_NRI_WINDOWS_BIN names it.
func products(t *testing.T) string {
	t.Helper()
	if dir := os.Getenv("DIRECTX_NRI_WINDOWS_BIN"); dir != "" {
		return dir
	}
	dir := t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-o", dir, "./cmd/dxctl", "./cmd/containerd-shim-directx-v1")
	build.Dir = filepath.Join("..", "..")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the product: %v\n%s", err, out)
	}
	return dir
}

// run runs a program and returns its standard output. The error has its standard error.
func run(t *testing.T, program string, args ...string) (string, error) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if err != nil {
		err = fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, stderr.String())
	}
	return stdout.String(), err
}

// mustRun is [run] for a program that has to succeed.
func mustRun(t *testing.T, program string, args ...string) string {
	t.Helper()
	out, err := run(t, program, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// device is a device in the JSON output of 'dxctl devices'.
type device struct {
	InstanceID, Health, LocationPath, DriverStorePath string
	System32, SysWOW64                                []discovery.RuntimeFile
}

// devices returns the GPUs of this machine.
func devices(t *testing.T, dxctl string) (found []device) {
	t.Helper()
	if err := json.Unmarshal([]byte(mustRun(t, dxctl, "devices", "--state-dir", t.TempDir(), "--output", "json")), &found); err != nil {
		t.Fatal(err)
	}
	return found
}

// TestInstalledDevices checks what is found of each GPU that can be used against this
// machine's file system.
func TestInstalledDevices(t *testing.T) {
	found := devices(t, filepath.Join(products(t), "dxctl.exe"))
	t.Logf("%d devices: %+v", len(found), found)
	for _, d := range found {
		if d.Health != "healthy" || d.LocationPath == "" {
			continue // It is not offered.
		}
		if info, err := os.Stat(d.DriverStorePath); err != nil || !info.IsDir() {
			t.Errorf("the driver store path of %s is %q: %v", d.InstanceID, d.DriverStorePath, err)
		}
		missing := 0
		for _, f := range append(d.System32, d.SysWOW64...) {
			if _, err := os.Stat(filepath.Join(d.DriverStorePath, f.Source)); err != nil {
				t.Logf("%s lists a file that does not exist: %v", d.InstanceID, err)
				missing++
			}
		}
		if all := len(d.System32) + len(d.SysWOW64); all > 0 && missing == all {
			t.Errorf("none of the %d runtime files of %s exists", all, d.InstanceID)
		}
	}
}

// TestInstalledCapabilities checks the reported Windows against the running one.
func TestInstalledCapabilities(t *testing.T) {
	var got struct {
		Windows struct {
			Windows    struct{ Build uint32 }
			HCSSchemas []string
			HCSError   string
		}
		Assignment, Reason string
	}
	out := mustRun(t, filepath.Join(products(t), "dxctl.exe"), "capabilities", "--output", "json")
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", got)
	if want := windows.RtlGetVersion().BuildNumber; got.Windows.Windows.Build != want {
		t.Errorf("the build is %d, want %d", got.Windows.Windows.Build, want)
	}
	if got.Windows.HCSError != "" || len(got.Windows.HCSSchemas) == 0 {
		t.Errorf("the Host Compute Service reports the schemas %q, error %q", got.Windows.HCSSchemas, got.Windows.HCSError)
	}
	if got.Assignment == "" || got.Reason == "" {
		t.Errorf("devices are assigned by %q, because %q", got.Assignment, got.Reason)
	}
}

// images are base images by the build of Windows that they need.
var images = map[uint32]string{
	17763: "mcr.microsoft.com/windows/nanoserver:ltsc2019",
	20348: "mcr.microsoft.com/windows/nanoserver:ltsc2022",
	26100: "mcr.microsoft.com/windows/nanoserver:ltsc2025",
}

// TestInstalledContainers runs containers with the shim beside the installed containerd:
// without a request they are as with runhcs, and with one they have the GPUs or are refused.
func TestInstalledContainers(t *testing.T) {
	dir := filepath.Join(os.Getenv("ProgramFiles"), "containerd")
	ctr := filepath.Join(dir, "ctr.exe")
	if _, err := os.Stat(ctr); err != nil {
		t.Fatalf("containerd is not installed: %v", err)
	}
	image := images[windows.RtlGetVersion().BuildNumber]
	if image == "" {
		t.Fatalf("no base image is known for build %d of Windows", windows.RtlGetVersion().BuildNumber)
	}
	dxctl := filepath.Join(products(t), "dxctl.exe")
	mustRun(t, ctr, "images", "pull", image)
	mustRun(t, dxctl, "runtime", "install", "--to", dir)
	t.Cleanup(func() {
		if err := os.Remove(filepath.Join(dir, "containerd-shim-directx-v1.exe")); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Error(err)
		}
	})
	start := func(runtime, id string, more ...string) (string, error) {
		args := append([]string{"run", "--rm", "--runtime", runtime}, more...)
		return run(t, ctr, append(args, image, id, "cmd", "/c", `dir /b C:\Windows\System32`)...)
	}
	plain, err := start("io.containerd.runhcs.v1", "directx-nri-plain")
	if err != nil {
		t.Fatalf("without the shim: %v", err)
	}
	got, err := start("io.containerd.directx.v1", "directx-nri-none")
	if err != nil || got != plain {
		t.Errorf("a container without a request: %v\n%s\nand without the shim\n%s", err, got, plain)
	}
	usable := 0
	for _, d := range devices(t, dxctl) {
		if d.Health == "healthy" && d.LocationPath != "" {
			usable++
		}
	}
	got, err = start("io.containerd.directx.v1", "directx-nri-all", "--env", "DIRECTX_VISIBLE_DEVICES=all")
	switch {
	case usable == 0 && (err == nil || !strings.Contains(err.Error(), "directx-nri: ")):
		t.Errorf("without a GPU, a container that requests all: %v\n%s", err, got)
	case usable > 0 && (err != nil || got == plain):
		t.Errorf("a container that requests all of %d GPUs: %v\n%s", usable, err, got)
	}
}
