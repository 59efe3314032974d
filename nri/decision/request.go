package decision

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"

	"directx-nri/internal/allocation"
	"directx-nri/ocispec"
)

// AdjustedAnnotation marks a container of a pod that has got what it was promised. Its value
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
		// Windows reads a variable whatever its case, so any case presents. Of
		// other letters, those that Go has "I" for are none to Windows.
		if os == ocispec.Windows && hasPrefixFold(name, allocation.EnvPrefix) {
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

func hasPrefixFold(s, prefix string) bool {
	return len(s) >= len(prefix) && strings.EqualFold(s[:len(prefix)], prefix)
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

// Mark returns the value of [AdjustedAnnotation] for a container with the
// variables env, "" when it presents no token.
func Mark(os ocispec.OS, env []string) string { return mark(presented(os, env)) }

func mark(list []presentation) string {
	if len(list) == 0 {
		return ""
	}
	sum := sha256.New()
	for _, p := range list {
		sum.Write([]byte(p.variable + "=" + p.value + "\x00"))
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// Unadjusted tells whether a container presents tokens and was made without
// the edits that a decision gives it.
func Unadjusted(os ocispec.OS, env []string, annotations map[string]string) bool {
	want := Mark(os, env)
	return want != "" && annotations[AdjustedAnnotation] != want
}

// Delivered tells whether the runtime shim gave the container with the given ID
// what its variables stand for: the runtime's own record of such a container
// has no mark.
func Delivered(store *allocation.Store, os ocispec.OS, env []string, containerID string) bool {
	for _, p := range presented(os, env) {
		token, err := allocation.ParseToken(p.value)
		if err != nil {
			return false
		}
		if to, err := store.Delivered(token); err != nil || to != containerID {
			return false
		}
	}
	return true
}

// Tokens returns the tokens that c presents, those that are none left out.
func Tokens(c Container) []allocation.Token {
	var tokens []allocation.Token
	for _, p := range presented(c.OS, c.Env) {
		if token, err := allocation.ParseToken(p.value); err == nil {
			tokens = append(tokens, token)
		}
	}
	return tokens
}
