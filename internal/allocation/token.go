package allocation

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
)

// Token is the key of an allocation record: 128 random bits as 32 lower-case hexadecimal digits. It
// is a bearer secret, and never appears in a log, an error, a file or a file's name.
type Token string

// ID names an allocation in messages and files: a digest of its token, from which
// the token cannot be derived.
type ID string

const tokenBytes = 16

// ErrMalformedToken is returned for a string that is not in the format of a token.
var ErrMalformedToken = errors.New("not an allocation token")

// NewToken returns an unguessable token.
func NewToken() Token {
	random := make([]byte, tokenBytes)
	// crypto/rand.Read never fails: it ends the program first.
	_, _ = rand.Read(random)
	return Token(hex.EncodeToString(random))
}

// ParseToken returns s as a token. It accepts one spelling only.
func ParseToken(s string) (Token, error) {
	if !isWellFormed(s) {
		return "", fmt.Errorf("the value (%q, %d characters) is %w", shorten(s, 4), len(s), ErrMalformedToken)
	}
	return Token(s), nil
}

func isWellFormed(s string) bool {
	return len(s) == 2*tokenBytes && strings.Trim(s, "0123456789abcdef") == ""
}

// ID returns the ID of the allocation that t stands for.
func (t Token) ID() ID {
	sum := sha256.Sum256([]byte(t))
	return ID(hex.EncodeToString(sum[:tokenBytes]))
}

// String returns the ID, so that a token is not printed by mistake.
func (t Token) String() string { return "token of " + string(t.ID()) }

// GoString is String, for %#v.
func (t Token) GoString() string { return t.String() }

// MarshalText is String, for logs in JSON.
func (t Token) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

func shorten(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}

// A container gets its token in an environment variable and an annotation. It presents the token
// of each environment variable whose name begins with EnvPrefix, wherever the variable comes from.
const (
	EnvPrefix        = "DIRECTX_ALLOCATION_"
	AnnotationPrefix = "directx.microsoft.com/allocation."

	resourceDomain = "directx.microsoft.com/"
)

// EnvKey returns the environment variable for resource: DIRECTX_ALLOCATION_DISPLAY for
// directx.microsoft.com/display. The kubelet merges the answers for a container's resources, and of
// several values for one key it keeps only the first, so each resource has its own key.
func EnvKey(resource string) string {
	return EnvPrefix + strings.ToUpper(mapName(resource, '_'))
}

// AnnotationKey returns the annotation for resource:
// directx.microsoft.com/allocation.display for directx.microsoft.com/display.
func AnnotationKey(resource string) string {
	return AnnotationPrefix + mapName(resource, '.')
}

// mapName removes the default domain of resources and replaces all characters except letters and
// digits.
func mapName(resource string, replacement rune) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9':
			return r
		}
		return replacement
	}, strings.TrimPrefix(resource, resourceDomain))
}

// The interlock is part of the advertiser's answer to Allocate. No runtime starts
// a container that still has it: runc refuses a mount at a new name inside /proc,
// and runhcs refuses a device of a type that it does not support. The NRI plugin
// and the runtime shim remove it when they make the container's edits.
const (
	// InterlockMount is the destination of a bind mount of [InterlockSource] in Linux containers.
	InterlockMount = "/proc/directx-nri-did-not-adjust-this-container"
	// InterlockSource is the source of that mount.
	InterlockSource = "/dev/null"
	// InterlockDeviceType and InterlockDeviceID are the type and ID of a Windows
	// device. In the kubelet's answer it is written TYPE://ID.
	InterlockDeviceType = "directx-nri"
	InterlockDeviceID   = "not-started-through-the-runtime-shim"
)
