package shim

import (
	"bytes"
	"slices"

	"github.com/directx-nri/directx-nri/decision"
	"github.com/directx-nri/directx-nri/ocispec"
)

// Annotations that containerd's CRI plugin sets on each container of a pod after
// all others, so that no pod can forge or remove them.
// https://github.com/containerd/containerd/blob/v1.7.35/pkg/cri/annotations/annotations.go
const (
	containerType    = "io.kubernetes.cri.container-type" // "sandbox" or "container"
	sandboxUID       = "io.kubernetes.cri.sandbox-uid"
	sandboxName      = "io.kubernetes.cri.sandbox-name"
	sandboxNamespace = "io.kubernetes.cri.sandbox-namespace"
	containerName    = "io.kubernetes.cri.container-name"

	typeSandbox = "sandbox"

	// hostProcess is "true" for containers that hcsshim runs as processes of the host.
	hostProcess = "microsoft.com/hostprocess-container"
)

// Describe returns the container of a spec. ok is false if it never gets a GPU: a
// pod's sandbox, or a host process. That sees all GPUs anyway, and hcsshim ignores the
// devices of its spec, an interlock included: it starts with the spec that it has.
func Describe(facts ocispec.Facts, id string) (c decision.Container, ok bool) {
	kind := facts.Annotations[containerType]
	if kind == typeSandbox || facts.Windows && facts.Annotations[hostProcess] == "true" {
		return decision.Container{}, false
	}
	c = decision.Container{
		OS: facts.OS, ID: id, Env: facts.Env, Annotations: facts.Annotations,
		Devices: facts.Devices, HyperV: facts.HyperV,
	}
	if kind != "" {
		c.Name = facts.Annotations[containerName]
		c.Pod = &decision.Pod{UID: facts.Annotations[sandboxUID], Namespace: facts.Annotations[sandboxNamespace], Name: facts.Annotations[sandboxName]}
	}
	return c, true
}

// hasHostProcess reports whether a config.json has the annotation of a host process,
// in the form of Go's encoder, which containerd uses. A pod's sandbox has it too.
// The whole key is searched: others, such as directx.microsoft.com/…, end like it.
func hasHostProcess(config []byte) bool {
	return bytes.Contains(config, []byte(`"`+hostProcess+`":"true"`))
}

// hasSandbox reports whether a config.json is that of a pod's sandbox, in the same form.
func hasSandbox(config []byte) bool {
	return bytes.Contains(config, []byte(`-type":"sandbox"`))
}

// definitelyNoRequest reports whether the bytes of a config.json cannot contain a
// request for a GPU, which is much faster than parsing it and true for most
// containers.
//
// It must never be true for a container that requests a GPU: it is false for a file
// that is incomplete or could contain the keywords in another form of JSON.
func definitelyNoRequest(config []byte) bool {
	trimmed := bytes.TrimSpace(config)
	if len(trimmed) < 2 || trimmed[0] != '{' || trimmed[len(trimmed)-1] != '}' {
		return false
	}
	for _, text := range []string{ocispec.IDTypeLocationPath, ocispec.IDTypeClassGUID, ocispec.IDTypeClass[1:] + `"`, `\/`} {
		if bytes.Contains(config, []byte(text)) {
			return false
		}
	}
	return !containsEscape(config) && !containsDirectX(config)
}

// containsEscape looks for an escaped character other than &, < and >, which Go's encoder
// escapes: shell commands have them.
func containsEscape(config []byte) bool {
	for {
		_, rest, found := bytes.Cut(config, []byte(`\u`))
		if !found {
			return false
		}
		if len(rest) < 4 || !slices.Contains([]string{"0026", "003c", "003e"}, string(rest[:4])) {
			return true
		}
		config = rest
	}
}

// containsDirectX looks for "directx" in any case, with which all variables,
// annotations and the interlock begin. Its last letter is rare and searched first.
func containsDirectX(config []byte) bool {
	const word = "direct"
	for _, last := range []byte("xX") {
		for at := 0; ; at++ {
			i := bytes.IndexByte(config[at:], last)
			if i < 0 {
				break
			}
			at += i
			if at >= len(word) && bytes.EqualFold(config[at-len(word):at], []byte(word)) {
				return true
			}
		}
	}
	return false
}
