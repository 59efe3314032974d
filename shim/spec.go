package shim

import (
	"bytes"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/directx-nri/directx-nri/decision"
	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/ocispec"
)

// Annotations that containerd's CRI plugin sets on each container of a pod after
// all others, so that no pod can forge or remove them.
// containerd's own constants are internal in 2.x, and in 1.7 their package imports 490 others:
// https://github.com/containerd/containerd/blob/v2.4.2/internal/cri/annotations/annotations.go,
// https://github.com/containerd/containerd/blob/v1.7.35/pkg/cri/annotations/annotations.go
const (
	containerType    = "io.kubernetes.cri.container-type" // "sandbox" or "container"
	sandboxID        = "io.kubernetes.cri.sandbox-id"
	sandboxUID       = "io.kubernetes.cri.sandbox-uid"
	sandboxName      = "io.kubernetes.cri.sandbox-name"
	sandboxNamespace = "io.kubernetes.cri.sandbox-namespace"
	containerName    = "io.kubernetes.cri.container-name"

	typeSandbox = "sandbox"

	// hostProcess is "true" for containers that hcsshim runs as processes of the host.
	hostProcess = "microsoft.com/hostprocess-container"
)

// ContainerOf returns the container of a spec. It has no annotations if it belongs to a pod: those in the
// spec can come from the pod (pod_annotations in containerd's configuration), and not from the kubelet. ok
// is false if the container never gets a GPU: it is a pod's sandbox or a host process. A host process sees
// all GPUs anyway, and hcsshim starts it without the devices of its spec, an interlock included.
func ContainerOf(info ocispec.SpecInfo, id string) (c decision.Container, ok bool) {
	kind := info.Annotations[containerType]
	if kind == typeSandbox || info.HasWindows && info.Annotations[hostProcess] == "true" {
		return decision.Container{}, false
	}
	c = decision.Container{OS: info.OS, ID: id, Env: info.Env, Devices: info.Devices, HyperV: info.HyperV}
	if kind == "" {
		c.Annotations = info.Annotations
	} else {
		c.Interlock = slices.ContainsFunc(info.Devices, func(d specs.WindowsDevice) bool {
			return d.IDType == allocation.InterlockDeviceType
		})
		c.Name = info.Annotations[containerName]
		c.Pod = &decision.Pod{
			UID: info.Annotations[sandboxUID], Namespace: info.Annotations[sandboxNamespace], Name: info.Annotations[sandboxName],
		}
	}
	return c, true
}

// isHostProcess reports whether a config.json, in the form of Go's encoder, which containerd uses, is
// that of a host process or its pod's sandbox. The search includes the quotation marks, because other
// keys can end with the same string.
func isHostProcess(config []byte) bool {
	return bytes.Contains(config, []byte(`"`+hostProcess+`":"true"`))
}

// isSandbox reports whether a config.json, in the form of Go's encoder, is that of a pod's sandbox.
func isSandbox(config []byte) bool {
	return bytes.Contains(config, []byte(`"`+containerType+`":"`+typeSandbox+`"`))
}

// mayRequestGPU reports whether the bytes of a config.json could contain a request for a
// GPU. This is much faster than parsing it, and false for most containers.
//
// It must be true for each container that requests a GPU, so it is also true for a file
// that is incomplete, or that could contain the keywords in another form of JSON.
func mayRequestGPU(config []byte) bool {
	trimmed := bytes.TrimSpace(config)
	if !bytes.HasPrefix(trimmed, []byte("{")) || !bytes.HasSuffix(trimmed, []byte("}")) || hasEscapes(config) {
		return true
	}
	for _, idType := range []string{ocispec.IDTypeLocationPath, ocispec.IDTypeClassGUID, `"` + ocispec.IDTypeClass + `"`} {
		if bytes.Contains(config, []byte(idType)) {
			return true
		}
	}
	return mentionsDirectX(config)
}

// mentionsDirectX reports whether config has "directx" in upper, lower or mixed case. The names of
// all environment variables and annotations, and the interlock, have it. To search for the last letter
// and compare the six before it is 0.1 ms faster for 60 kB than converting everything to lower case.
func mentionsDirectX(config []byte) bool {
	name := []byte("directx")
	for _, last := range []string{"x", "X"} {
		for part := range bytes.SplitAfterSeq(config, []byte(last)) {
			if len(part) >= len(name) && bytes.EqualFold(part[len(part)-len(name):], name) {
				return true
			}
		}
	}
	return false
}

// hasEscapes reports whether the JSON has escapes for letters or slashes. Escapes for &, < and > do
// not count: Go's encoder, which containerd uses, escapes them, and shell commands often have them.
func hasEscapes(config []byte) bool {
	escapes := bytes.Count(config, []byte(`\u`)) + bytes.Count(config, []byte(`\/`))
	for _, harmless := range []string{`\u0026`, `\u003c`, `\u003e`} {
		escapes -= bytes.Count(config, []byte(harmless))
	}
	return escapes > 0
}
