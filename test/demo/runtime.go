package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/aymanbagabas/go-udiff"
	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	nrilog "github.com/containerd/nri/pkg/log"
	"github.com/opencontainers/runtime-spec/specs-go"

	"directx-nri/ocispec"
	"directx-nri/ocispec/adjustment"
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
	edits, err := adjustment.Edits(response.GetAdjust())
	if err != nil {
		return nil, nil, err
	}
	after, err = ocispec.Apply(before, edits)
	return before, after, err
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

func diff(before, after []byte) (string, error) {
	old, err := pretty(before)
	if err != nil {
		return "", fmt.Errorf("spec before: %w", err)
	}
	edited, err := pretty(after)
	if err != nil {
		return "", fmt.Errorf("spec after: %w", err)
	}
	return udiff.Unified("config.json as containerd wrote it", "config.json as Windows gets it", old, edited), nil
}

// pretty returns the JSON in data with its keys in order, so that only edits
// differ, and with each element of a list on a line of its own.
func pretty(data []byte) (string, error) {
	var v any
	if err := json.Unmarshal(data, &v); err != nil {
		return "", err
	}
	var b strings.Builder
	if err := write(&b, v, ""); err != nil {
		return "", err
	}
	return b.String() + "\n", nil
}

func write(b *strings.Builder, v any, indent string) error {
	object, ok := v.(map[string]any)
	list, isList := v.([]any)
	switch {
	case ok:
		b.WriteString("{\n")
		for i, key := range slices.Sorted(maps.Keys(object)) {
			if i > 0 {
				b.WriteString(",\n")
			}
			fmt.Fprintf(b, "%s  %q: ", indent, key)
			if err := write(b, object[key], indent+"  "); err != nil {
				return err
			}
		}
		b.WriteString("\n" + indent + "}")
		return nil
	case isList && len(list) > 0:
		b.WriteString("[\n")
		for i, element := range list {
			if i > 0 {
				b.WriteString(",\n")
			}
			b.WriteString(indent + "  ")
			if err := writeCompact(b, element); err != nil {
				return err
			}
		}
		b.WriteString("\n" + indent + "]")
		return nil
	}
	return writeCompact(b, v)
}

func writeCompact(b *strings.Builder, v any) error {
	var compact bytes.Buffer
	e := json.NewEncoder(&compact)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	b.Write(bytes.TrimSuffix(compact.Bytes(), []byte("\n")))
	return err
}

// silence keeps the library's own log out of the story.
type silence struct{}

func (silence) Debugf(context.Context, string, ...any) {}
func (silence) Infof(context.Context, string, ...any)  {}
func (silence) Warnf(context.Context, string, ...any)  {}
func (silence) Errorf(context.Context, string, ...any) {}
