package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	plugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/directx-nri/directx-nri/advertiser/config"
	"github.com/directx-nri/directx-nri/internal/allocation"
)

// windowsInventory describes a Windows node of AWS.
const windowsInventory = "deployments/inventory/windows-g4dn.yaml"

func (d *demo) listGPUs(repository string) (err error) {
	if d.inventory, err = filepath.Abs(filepath.Join(repository, windowsInventory)); err != nil {
		return err
	}
	devices, _, err := config.Compiler{InspectOnly: true}.ReadInventory(d.inventory)
	if err != nil {
		return err
	}
	d.title("A simulated Windows node with %d GPUs (%s)", len(devices), windowsInventory)
	for _, g := range devices {
		d.driverFiles = len(g.System32) + len(g.SysWOW64)
		d.say(fmt.Sprintf("%s, %d GiB, driver %s with %d files, at %s", g.Description, g.DedicatedMemory>>30, g.DriverVersion, d.driverFiles, g.LocationPath))
	}
	return nil
}

func (d *demo) startWindowsNode(ctx context.Context) (err error) {
	d.title("directx-advertiser offers each GPU to the kubelet 4 times")
	if d.windows, err = newNode(d.path("windows"), windowsRuntime); err != nil {
		return err
	}
	// On Linux, the shim looks for the real one on PATH.
	if err := os.WriteFile(d.path("containerd-shim-runc-v2"), []byte("#!/bin/sh\necho \"starts the container\"\n"), 0o700); err != nil {
		return err
	}
	return d.advertise(ctx, d.windows, "--inventory", d.inventory, "--node-os", "windows")
}

func (d *demo) onePod(ctx context.Context) error {
	d.title("A pod requests one %s, and gets one of them", display)
	answer, err := d.allocate(ctx, d.windows)
	if err != nil {
		return err
	}
	before, after, out, err := d.startContainer(pod{name: "render", container: answer.GetAnnotations()}, answer.GetDevices())
	if err != nil {
		return err
	}
	d.by("containerd", "writes the container's config.json and runs the shim in its directory.")
	d.by("shim", `asks containerd for the annotation, edits config.json, and runs the real shim. DRIVER is the driver's directory in C:\Windows\System32\DriverStore\FileRepository.`)
	if err := d.printAdditions(before, after); err != nil {
		return err
	}
	d.by("real shim", "%s", out)

	d.title("Without the shim, the same container does not start")
	d.by("advertiser", "also answers with an interlock, a device that no runtime knows:")
	d.by("", "%s", answer.GetDevices()[0].GetHostPath())
	d.by("shim", "removed it when it added the GPU. Without our shim, in the end-to-end tests:")
	d.by("runhcs", "refuses: specified device %s has unsupported type %s", allocation.InterlockDeviceID, allocation.InterlockDeviceType)
	d.by("", "On Linux, the interlock is a mount. Without directx-nri, in the end-to-end tests:")
	d.by("runc", `refuses: error mounting %q to rootfs at %q: "…" cannot be mounted because it is inside /proc`, allocation.InterlockSource, interlockMount())
	return nil
}

// startContainer runs the runtime shim as containerd does for a container of a
// pod. It returns the container's config.json before and after.
func (d *demo) startContainer(p pod, devices []*plugin.DeviceSpec) (before, after []byte, out string, err error) {
	d.windows.runtime.set(p)
	bundle := d.path("bundle-" + p.name)
	file := filepath.Join(bundle, "config.json")
	if before, err = windowsSpec(p.name, devices); err != nil {
		return nil, nil, "", err
	}
	if err := errors.Join(os.Mkdir(bundle, 0o700), os.WriteFile(file, before, 0o600)); err != nil {
		return nil, nil, "", err
	}
	shim := exec.Command(filepath.Join(d.bin, shimName), "-namespace", "k8s.io", "-address", d.windows.path("cri.sock"), "-id", p.name, "start")
	shim.Dir, shim.Env = bundle, append(os.Environ(), "DIRECTX_NRI_STATE_DIR="+d.windows.path("state"), "PATH="+d.dir+":"+os.Getenv("PATH"))
	var stdout, stderr bytes.Buffer
	shim.Stdout, shim.Stderr = &stdout, &stderr
	if err := shim.Run(); err != nil {
		return nil, nil, "", fmt.Errorf("%w: %s", err, &stderr)
	}
	after, err = os.ReadFile(file)
	return before, after, stdout.String(), err
}

func (d *demo) otherPods(ctx context.Context) error {
	d.title("Only the kubelet's allocation gives a container a GPU")
	before, after, _, err := d.startContainer(pod{name: "no-request"}, nil)
	if err != nil || !bytes.Equal(before, after) {
		return fmt.Errorf("the shim changed the container of a pod without an allocation, or failed: %w", err)
	}
	d.by("shim", "leaves config.json of a pod that only sets DIRECTX_VISIBLE_DEVICES=all as it is.")
	_, answer, err := d.windows.kubelet.Allocate(ctx, display, 1)
	if err != nil {
		return err
	}
	given := answer.GetAnnotations()
	if _, _, _, err := d.startContainer(pod{name: "owner", container: given}, answer.GetDevices()); err != nil {
		return err
	}
	for _, p := range []pod{{name: "thief", container: given}, {name: "forger", annotations: given}} {
		_, _, _, err := d.startContainer(p, answer.GetDevices())
		if err == nil {
			return fmt.Errorf("the container of pod %s started", p.name)
		}
		_, why, _ := strings.Cut(err.Error(), ": ")
		d.by("shim", "refuses: %s", strings.ReplaceAll(why, d.dir, "…"))
	}
	return nil
}
