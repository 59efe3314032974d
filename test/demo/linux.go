package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	"github.com/sirupsen/logrus"

	"github.com/directx-nri/directx-nri/internal/allocation"
)

// linuxInventory describes a GPU of a Linux VM; /dev/null stands for /dev/dxg.
const linuxInventory = `apiVersion: directx.microsoft.com/v1alpha1
kind: Inventory
devices:
- instanceID: VMBUS\GPU-PV-0
  description: NVIDIA A10-8Q
  display: true
  linux: {deviceNodes: [{path: /dev/null, containerPath: /dev/dxg}]}
`

// linuxPod makes the NRI plugin adjust a Linux container.
func (d *demo) linuxPod(ctx context.Context) error {
	d.title("On Linux, containerd calls directx-nri by NRI")
	n, err := newNode(d.path("linux"), linuxRuntime)
	if err != nil {
		return err
	}
	defer n.close()
	if err := os.WriteFile(n.path("gpus.yaml"), []byte(linuxInventory), 0o600); err != nil {
		return err
	}
	runtime, err := startRuntime(n)
	if err != nil {
		return fmt.Errorf("start NRI's runtime library: %w", err)
	}
	defer runtime.Stop()
	err = d.start("directx-nri", "--state-dir", n.path("state"), "--runtime-dir", n.path("run"), "--nri-socket", n.path("nri.sock"), "--cri-socket", n.path("cri.sock"))
	if err != nil {
		return err
	}
	if err := d.advertise(ctx, n, "--inventory", n.path("gpus.yaml")); err != nil {
		return err
	}
	answer, err := d.allocate(ctx, n)
	if err != nil {
		return err
	}
	adjustment, err := create(ctx, runtime, answer.GetAnnotations())
	if err != nil {
		return err
	}
	d.by("directx-nri", "adjusts the container that containerd creates:")
	removed := false
	for _, m := range adjustment.GetMounts() {
		name, marked := m.IsMarkedForRemoval()
		removed = removed || marked && name == allocation.InterlockMount
	}
	devices := adjustment.GetLinux().GetDevices()
	if !removed || len(devices) != 1 {
		return errors.New("the plugin did not give the container its GPU")
	}
	d.say("  + linux.devices    " + devices[0].GetPath())
	d.say("  - mounts           " + interlockMount())
	d.by("", "That mount is the interlock.")
	return nil
}

// interlockMount returns the first words of the mount's long name.
func interlockMount() string {
	name, _, _ := strings.Cut(allocation.InterlockMount, "--")
	return name + "…"
}

// startRuntime starts the part of a runtime that calls NRI plugins: containerd
// links the same library.
func startRuntime(n *node) (*adaptation.Adaptation, error) {
	logrus.SetOutput(io.Discard) // The library's log.
	synchronize := func(ctx context.Context, callback adaptation.SyncCB) error {
		_, err := callback(ctx, nil, nil)
		return err
	}
	update := func(context.Context, []*api.ContainerUpdate) ([]*api.ContainerUpdate, error) { return nil, nil }
	runtime, err := adaptation.New("containerd", "v1.7.35", synchronize, update, adaptation.WithSocketPath(n.path("nri.sock")),
		adaptation.WithPluginPath(n.path("none")), adaptation.WithPluginConfigPath(n.path("none")))
	if err != nil {
		return nil, err
	}
	return runtime, runtime.Start()
}

// create creates a container with annotations and the interlock, once the plugin is
// connected, and returns the plugin's adjustment.
func create(ctx context.Context, runtime *adaptation.Adaptation, annotations map[string]string) (*api.ContainerAdjustment, error) {
	for {
		block := runtime.BlockPluginSync()
		response, err := runtime.CreateContainer(ctx, &api.CreateContainerRequest{
			Pod: &api.PodSandbox{Id: "sandbox", Name: "train", Namespace: "default", Uid: "uid-of-train"},
			Container: &api.Container{
				Id: "container", PodSandboxId: "sandbox", Name: "main", Annotations: annotations,
				Mounts: []*api.Mount{{Source: allocation.InterlockSource, Destination: allocation.InterlockMount, Type: "bind"}},
			},
		})
		block.Unblock()
		if err != nil || len(response.GetAdjust().GetMounts()) > 0 {
			return response.GetAdjust(), err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("no plugin adjusted the container: %w", ctx.Err())
		case <-time.After(10 * time.Millisecond):
		}
	}
}
