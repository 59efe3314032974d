package allocation

import "strings"

// What the advertiser's answer to the kubelet carries a token in, and what a
// container presents it by. The prefixes are ours: a container that has a
// variable which begins with EnvPrefix presents a token, wherever the variable
// came from.
const (
	EnvPrefix        = "DIRECTX_ALLOCATION"
	AnnotationPrefix = "directx.microsoft.com/allocation"

	domain = "directx.microsoft.com/"
)

// EnvKey returns the variable for resource:
// DIRECTX_ALLOCATION_DISPLAY for directx.microsoft.com/display. The kubelet
// merges the answers for a container's resources by key and drops all but the
// first of a clash, so each resource has a key of its own.
func EnvKey(resource string) string {
	return EnvPrefix + "_" + strings.ToUpper(mapName(resource, '_'))
}

// AnnotationKey returns the annotation for resource:
// directx.microsoft.com/allocation.display for directx.microsoft.com/display.
func AnnotationKey(resource string) string {
	return AnnotationPrefix + "." + mapName(resource, '.')
}

// mapName leaves our own domain out and replaces what a variable or an
// annotation's name cannot have in it.
func mapName(resource string, replacement rune) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9':
			return r
		}
		return replacement
	}, strings.TrimPrefix(resource, domain))
}
