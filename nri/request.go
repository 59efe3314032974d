// Package nri is the NRI plugin: it decides, when a container is created, what
// that container gets, and answers with an NRI ContainerAdjustment.
//
// In a pod, a recorded allocation is the only key. [Adjuster] is the decision
// and its work, and knows nothing of the protocol's life; [Runner] keeps the
// plugin registered with the runtime; [Evictor] stops containers that were
// started without what they were promised.
package nri

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"

	"github.com/containerd/nri/pkg/api"

	"directx-nri/internal/allocation"
	"directx-nri/ocispec"
)

// AdjustedAnnotation marks a container that this plugin has adjusted. Its value
// is made from the container's tokens. They are not known before the pod is
// admitted, so that nothing written in a pod or an image can stand for it.
const AdjustedAnnotation = "directx.microsoft.com/adjusted"

// presentation is one variable by which a container presents a token.
type presentation struct {
	variable string
	value    string
}

// presented returns the variables in env by which a container presents
// tokens, sorted. Whatever their values are: a container that presents anything
// is given what it stands for, or refused.
func presented(os ocispec.OS, env []string) []presentation {
	var list []presentation
	for _, variable := range env {
		name, value, _ := strings.Cut(variable, "=")
		// Windows reads a variable whatever its case, so any case presents.
		if os == ocispec.Windows {
			name = strings.ToUpper(name)
		}
		if strings.HasPrefix(name, allocation.EnvPrefix) {
			list = append(list, presentation{name, value})
		}
	}
	slices.SortFunc(list, func(a, b presentation) int {
		return cmp.Or(cmp.Compare(a.variable, b.variable), cmp.Compare(a.value, b.value))
	})
	return slices.Compact(list)
}

// hidden returns the tokens among a container's annotations that none of its
// variables presents. The advertiser hands out both, and a variable of the
// pod's own replaces the advertiser's.
func hidden(annotations map[string]string, shown []presentation) []allocation.Token {
	var tokens []allocation.Token
	for key, value := range annotations {
		token, err := allocation.ParseToken(value)
		if err != nil || !strings.HasPrefix(key, allocation.AnnotationPrefix+".") {
			continue
		}
		if !slices.ContainsFunc(shown, func(p presentation) bool { return p.value == value }) {
			tokens = append(tokens, token)
		}
	}
	slices.Sort(tokens)
	return tokens
}

// mark returns the value of [AdjustedAnnotation] for a container that presents
// list.
func mark(list []presentation) string {
	sum := sha256.New()
	for _, p := range list {
		sum.Write([]byte(p.variable + "=" + p.value + "\x00"))
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// Unadjusted tells whether a container presents tokens and was made without
// the plugin's adjustment.
func Unadjusted(os ocispec.OS, container *api.Container) bool {
	list := presented(os, container.GetEnv())
	return len(list) > 0 && container.GetAnnotations()[AdjustedAnnotation] != mark(list)
}
