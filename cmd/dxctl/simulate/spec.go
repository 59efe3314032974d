package simulate

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"directx-nri/ocispec"
)

// What containerd's CRI plugin sets on each container of a pod.
// https://github.com/containerd/containerd/blob/v1.7.35/pkg/cri/annotations/annotations.go
const (
	criPrefix   = "io.kubernetes.cri."
	hostProcess = "microsoft.com/hostprocess-container"
)

// annotationDomain is what 'dxctl runtime configure' has containerd hand on of a
// pod's annotations.
const annotationDomain = "directx.microsoft.com/"

// variable is one of a container's, with the device plugin's own before the
// pod's.
type variable struct{ name, value string }

// baseSpec returns the OCI spec of a container of p as containerd writes one,
// as far as it can be told without an image. It has what a decision looks at, and
// what the pod says of its own.
func baseSpec(p pod, c container) *specs.Spec {
	spec := &specs.Spec{
		Version:     "1.1.0",
		Process:     &specs.Process{Args: slices.Concat(c.spec.Command, c.spec.Args), Cwd: c.spec.WorkingDir, Env: environment(c)},
		Mounts:      mounts(p, c.spec),
		Annotations: annotations(p, c),
	}
	if p.os == ocispec.Windows {
		spec.Process.Cwd = cmp.Or(spec.Process.Cwd, `C:\`)
		spec.Windows = &specs.Windows{LayerFolders: []string{`C:\ProgramData\containerd\root\io.containerd.snapshotter.v1.windows\snapshots\1`}}
		return spec
	}
	spec.Process.Cwd = cmp.Or(spec.Process.Cwd, "/")
	spec.Root = &specs.Root{Path: "rootfs"}
	spec.Linux = &specs.Linux{Resources: &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}}}
	return spec
}

// environment returns the container's variables. The pod's own come last, and of
// two with one name the last counts (WithEnv in containerd's oci/spec_opts.go).
func environment(c container) []string {
	var list []variable
	for _, name := range slices.Sorted(maps.Keys(c.envs)) {
		list = append(list, variable{name, c.envs[name]})
	}
	for _, v := range c.spec.Env {
		value := v.Value
		if v.ValueFrom != nil {
			value = "(valueFrom)"
		}
		list = append(list, variable{v.Name, value})
	}
	var env []string
	place := map[string]int{}
	for _, v := range list {
		text := v.name + "=" + v.value
		if i, ok := place[v.name]; ok {
			env[i] = text
			continue
		}
		place[v.name] = len(env)
		env = append(env, text)
	}
	return env
}

func annotations(p pod, c container) map[string]string {
	all := map[string]string{}
	for key, value := range p.annotations {
		if strings.HasPrefix(key, annotationDomain) {
			all[key] = value
		}
	}
	maps.Copy(all, c.annotations)
	all[criPrefix+"container-type"] = "container"
	all[criPrefix+"container-name"] = c.spec.Name
	all[criPrefix+"image-name"] = c.spec.Image
	all[criPrefix+"sandbox-id"] = "sandbox-of-" + p.Name
	all[criPrefix+"sandbox-name"] = p.Name
	all[criPrefix+"sandbox-namespace"] = p.Namespace
	all[criPrefix+"sandbox-uid"] = p.uid
	if isHostProcess(p.spec, c.spec) {
		all[hostProcess] = "true"
	}
	return all
}

// isHostProcess tells a container that is a process of the Windows host. What
// the container says counts more than what its pod says.
func isHostProcess(pod PodSpec, c ContainerSpec) bool {
	said := cmp.Or(c.SecurityContext.WindowsOptions.HostProcess, pod.SecurityContext.WindowsOptions.HostProcess)
	return said != nil && *said
}

// mounts returns the pod's own, which win over ours.
func mounts(p pod, c ContainerSpec) []specs.Mount {
	var list []specs.Mount
	for _, m := range c.VolumeMounts {
		mount := specs.Mount{Source: volumeSource(p, m.Name), Destination: m.MountPath, Options: []string{"rbind", "rw"}}
		if m.ReadOnly {
			mount.Options[1] = "ro"
		}
		if p.os == ocispec.Windows {
			mount.Destination = windowsPath(m.MountPath)
			mount.Options = mount.Options[1:]
		} else {
			mount.Type, mount.Destination = "bind", path.Clean("/"+m.MountPath)
		}
		list = append(list, mount)
	}
	return list
}

// volumeSource returns where the kubelet has a volume of the pod, its kind's
// folder left out.
func volumeSource(p pod, name string) string {
	for _, v := range p.spec.Volumes {
		if v.Name == name && v.HostPath != nil {
			return v.HostPath.Path
		}
	}
	if p.os == ocispec.Windows {
		return fmt.Sprintf(`C:\var\lib\kubelet\pods\%s\volumes\%s`, p.uid, name)
	}
	return fmt.Sprintf("/var/lib/kubelet/pods/%s/volumes/%s", p.uid, name)
}

// windowsPath returns a mount path as the kubelet hands it on: one without a
// drive is on C.
func windowsPath(mountPath string) string {
	mountPath = strings.ReplaceAll(mountPath, "/", `\`)
	switch {
	case strings.Contains(mountPath, ":"):
		return mountPath
	case strings.HasPrefix(mountPath, `\`):
		return "C:" + mountPath
	}
	return `C:\` + mountPath
}
