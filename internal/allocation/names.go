package allocation

import "strings"

// A token is passed to its container in an environment variable and an annotation. A
// container with a token in a variable that begins with EnvPrefix presents it, whatever set
// the variable.
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

// mapName removes our own domain and replaces all characters but letters and digits.
func mapName(resource string, replacement rune) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9':
			return r
		}
		return replacement
	}, strings.TrimPrefix(resource, domain))
}

// The interlock is part of the advertiser's answer to Allocate. No runtime starts
// a container that still has it: runc refuses a mount at a new name inside /proc,
// and runhcs refuses a device of a type that it does not support. The NRI plugin
// and the runtime shim remove it when they make the container's edits.
const (
	// InterlockMount is the destination of a bind mount of [InterlockSource] in
	// Linux containers.
	InterlockMount = "/proc/directx-nri-did-not-adjust-this-container"
	// InterlockSource is the source of that mount.
	InterlockSource = "/dev/null"
	// InterlockDeviceType and InterlockDeviceID are the type and ID of a Windows
	// device. In the kubelet's answer it is written TYPE://ID.
	InterlockDeviceType = "directx-nri"
	InterlockDeviceID   = "not-started-through-the-runtime-shim"
)
