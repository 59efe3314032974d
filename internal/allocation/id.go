package allocation

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
)

// ID names an allocation record: 128 random bits as 32 lower-case hexadecimal digits. It is the only key
// to the record, and travels in an annotation of the container, which only the kubelet can set.
type ID string

const idBytes = 16

// ErrMalformedID is returned for a string that is not in the format of an ID.
var ErrMalformedID = errors.New("not the ID of an allocation")

// NewID returns a random ID.
func NewID() ID {
	random := make([]byte, idBytes)
	// crypto/rand.Read never fails: it ends the program first.
	_, _ = rand.Read(random)
	return ID(hex.EncodeToString(random))
}

// ParseID returns s as an ID. It accepts one spelling only.
func ParseID(s string) (ID, error) {
	if !isWellFormed(s) {
		return "", fmt.Errorf("a value of %d characters is %w", len(s), ErrMalformedID)
	}
	return ID(s), nil
}

func isWellFormed(s string) bool {
	return len(s) == 2*idBytes && strings.Trim(s, "0123456789abcdef") == ""
}

// AnnotationPrefix begins the keys of the annotations of a container that have the IDs of its records. The
// kubelet sets them from the answer to Allocate, at each start of the container.
const AnnotationPrefix = "directx.microsoft.com/allocation."

// AnnotationKey returns the annotation for resource:
// directx.microsoft.com/allocation.display for directx.microsoft.com/display. The kubelet merges the answers
// for a container's resources, and of several values for one key it keeps only the first, so each resource
// has its own key.
func AnnotationKey(resource string) string {
	return AnnotationPrefix + strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9':
			return r
		}
		return '.'
	}, strings.TrimPrefix(resource, "directx.microsoft.com/"))
}

// The interlock is part of the advertiser's answer to Allocate. No runtime starts
// a container that still has it: runc and crun cannot mount at a new name inside /proc,
// and runhcs refuses a device of a type that it does not support. The NRI plugin
// and the runtime shim remove it when they make the container's edits.
const (
	// InterlockMount is the destination of a bind mount of [InterlockSource] in Linux containers. crun would create
	// a shorter name if a pod mounts a volume at /proc. File systems limit a name to 255 bytes.
	InterlockMount = "/proc/directx-nri-did-not-adjust-this-container" +
		"--without-it-the-container-would-start-without-its-GPU--see-the-log-of-directx-nri-on-this-node--" +
		"this-name-is-longer-than-any-file-system-allows-so-that-no-runtime-can-mount-there-even-if-the-pod-has-a-volume-at-proc"
	// InterlockSource is the source of that mount.
	InterlockSource = "/dev/null"
	// InterlockDeviceType and InterlockDeviceID are the type and ID of a Windows
	// device. In the kubelet's answer it is written TYPE://ID.
	InterlockDeviceType = "directx-nri"
	InterlockDeviceID   = "not-started-through-the-runtime-shim"
)
