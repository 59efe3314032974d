package main

import (
	"context"
	"encoding/json"
	"maps"
	"path/filepath"
	"slices"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	nrilog "github.com/containerd/nri/pkg/log"
	"github.com/opencontainers/runtime-spec/specs-go"

	"directx-nri/ocispec"
)

// pod is a pod with one container, as the runtime is asked to make it.
type pod struct {
	name, uid string
	container string
	envs      map[string]string
	annots    map[string]string
}

// runtime is NRI's own runtime side, which containerd has in it, and an OCI spec
// as containerd writes one for a Windows container.
type runtime struct{ nri *adaptation.Adaptation }

func startRuntime(folder, socket string) (*runtime, error) {
	nrilog.Set(silence{})
	synchronize := func(ctx context.Context, callback adaptation.SyncCB) error {
		_, err := callback(ctx, nil, nil)
		return err
	}
	update := func(context.Context, []*api.ContainerUpdate) ([]*api.ContainerUpdate, error) { return nil, nil }
	nri, err := adaptation.New("containerd", "v1.7.35", synchronize, update, adaptation.WithSocketPath(socket),
		adaptation.WithPluginPath(filepath.Join(folder, "none")), adaptation.WithPluginConfigPath(filepath.Join(folder, "none")))
	if err != nil {
		return nil, err
	}
	return &runtime{nri}, nri.Start()
}

// create has the plugins adjust p's container and returns its OCI spec before
// and after.
func (r *runtime) create(ctx context.Context, p pod) (before, after []byte, err error) {
	// A plugin that registers at this moment is waited for, as containerd does.
	block := r.nri.BlockPluginSync()
	defer block.Unblock()
	spec := containerSpec(p)
	if before, err = json.Marshal(spec); err != nil {
		return nil, nil, err
	}
	response, err := r.nri.CreateContainer(ctx, &api.CreateContainerRequest{
		Pod: &api.PodSandbox{Id: "sandbox-" + p.name, Name: p.name, Namespace: "default", Uid: p.uid},
		Container: &api.Container{
			Id: "container-" + p.name, PodSandboxId: "sandbox-" + p.name, Name: p.container,
			Env: spec.Process.Env, Annotations: p.annots, Mounts: api.FromOCIMounts(spec.Mounts),
		},
	})
	if err != nil {
		return nil, nil, err
	}
	parsed, err := ocispec.ParseSpec(before)
	if err != nil {
		return nil, nil, err
	}
	after, _, err = parsed.Apply(editsOf(response.GetAdjust()))
	return before, after, err
}

// editsOf returns what a runtime does with an adjustment.
func editsOf(adjustment *api.ContainerAdjustment) (edits ocispec.Edits) {
	for _, e := range adjustment.GetEnv() {
		edits.Env = append(edits.Env, e.GetKey()+"="+e.GetValue())
	}
	for _, d := range adjustment.GetLinux().GetDevices() {
		edits.LinuxDevices = append(edits.LinuxDevices, d.ToOCI())
	}
	for _, m := range adjustment.GetMounts() {
		if destination, removed := m.IsMarkedForRemoval(); removed {
			edits.RemoveMounts = append(edits.RemoveMounts, destination)
		} else {
			edits.Mounts = append(edits.Mounts, m.ToOCI(nil))
		}
	}
	return edits
}

func (r *runtime) close() { r.nri.Stop() }

func containerSpec(p pod) *specs.Spec {
	env := []string{`PATH=C:\Windows\System32;C:\Windows`}
	for _, key := range slices.Sorted(maps.Keys(p.envs)) {
		env = append(env, key+"="+p.envs[key])
	}
	return &specs.Spec{
		Version: "1.1.0",
		Process: &specs.Process{Args: []string{`C:\app\render.exe`}, Cwd: `C:\app`, Env: env},
		Mounts: []specs.Mount{{
			Source:      `C:\var\lib\kubelet\pods\` + p.uid + `\volumes\kubernetes.io~projected\kube-api-access`,
			Destination: `C:\var\run\secrets\kubernetes.io\serviceaccount`, Options: []string{"ro"},
		}},
		Windows: &specs.Windows{LayerFolders: []string{`C:\ProgramData\containerd\root\snapshots\42`}},
		Annotations: map[string]string{
			"io.kubernetes.cri.container-type": "container", "io.kubernetes.cri.container-name": p.container,
			"io.kubernetes.cri.sandbox-name": p.name, "io.kubernetes.cri.sandbox-uid": p.uid,
		},
	}
}

// silence keeps the library's own log out of the story.
type silence struct{}

func (silence) Debugf(context.Context, string, ...any) {}
func (silence) Infof(context.Context, string, ...any)  {}
func (silence) Warnf(context.Context, string, ...any)  {}
func (silence) Errorf(context.Context, string, ...any) {}
