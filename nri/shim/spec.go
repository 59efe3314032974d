package shim

import (
	"bytes"

	"directx-nri/nri/decision"
	"directx-nri/ocispec"
)

// Annotations that containerd's CRI plugin sets on each container of a pod,
// last, so that no pod can forge or drop them.
// https://github.com/containerd/containerd/blob/v1.7.35/pkg/cri/annotations/annotations.go
const (
	containerType    = "io.kubernetes.cri.container-type" // "sandbox" or "container"
	sandboxUID       = "io.kubernetes.cri.sandbox-uid"
	sandboxName      = "io.kubernetes.cri.sandbox-name"
	sandboxNamespace = "io.kubernetes.cri.sandbox-namespace"
	containerName    = "io.kubernetes.cri.container-name"

	typeSandbox = "sandbox"

	// hostProcess "true" is what makes hcsshim run a container as a process of
	// the host.
	hostProcess = "microsoft.com/hostprocess-container"
)

// Describe returns the container with the given ID that facts are of; ok is
// false for those that are never given a GPU: a pod's sandbox, and a process of
// the host, which sees the GPUs anyway.
func Describe(facts ocispec.Facts, id string) (c decision.Container, ok bool) {
	kind := facts.Annotations[containerType]
	if kind == typeSandbox || isHostProcess(facts) {
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

func isHostProcess(facts ocispec.Facts) bool {
	return facts.Windows && facts.Annotations[hostProcess] == "true"
}

// saysHostProcess tells, by one look at its bytes, whether a config.json has the
// annotation of a host process, as Go's encoder, which containerd writes with,
// writes it. A pod's sandbox has it too, and asks for nothing.
func saysHostProcess(config []byte) bool {
	return bytes.Contains(config, []byte(`"`+hostProcess+`":"true"`))
}

// cannotAsk tells, by one look at its bytes, that a config.json has nothing in
// it by which a container asks for a GPU. Most containers are like that, and
// reading JSON takes longer than all else that we do for them.
//
// It must never be true for one that asks: so a file that does not look whole,
// or that could spell our words in JSON's other ways, is read in full.
func cannotAsk(config []byte) bool {
	trimmed := bytes.TrimSpace(config)
	if len(trimmed) < 2 || trimmed[0] != '{' || trimmed[len(trimmed)-1] != '}' {
		return false
	}
	return !containsDirectX(config) && !containsClassOrPath(config) && !containsEscapedWord(config)
}

// containsDirectX looks for "directx" in any case: our variables and
// annotations all begin with it. Its last letter is rare, and so looked for
// first.
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

// containsClassOrPath looks for the kinds of Windows devices that GPUs are
// assigned by.
func containsClassOrPath(config []byte) bool {
	for _, idType := range []string{ocispec.IDTypeLocationPath, ocispec.IDTypeClassGUID, `"` + ocispec.IDTypeClass + `"`} {
		if bytes.Contains(config, []byte(idType)) {
			return true
		}
	}
	return false
}

// containsEscapedWord looks for characters written as \uXXXX, or a slash as
// \/, but for those that Go's encoder, which containerd writes with, writes so
// and that none of our words has.
func containsEscapedWord(config []byte) bool {
	for at := 0; ; {
		i := bytes.IndexByte(config[at:], '\\')
		if i < 0 || at+i+1 >= len(config) {
			return false
		}
		at += i
		switch config[at+1] {
		case '/':
			return true
		case 'u':
			if at+6 > len(config) {
				return true
			}
			switch string(config[at+2 : at+6]) {
			case "003c", "003e", "0026", "2028", "2029":
			default:
				return true
			}
		}
		at += 2
	}
}
