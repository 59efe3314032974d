package allocation

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
)

// Token is the key of an allocation record: 128 random bits as 32 lower-case
// hexadecimal digits. It is a bearer secret, and never appears in a log, an error, a
// file or a file's name.
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
	if !wellFormed(s) {
		return "", fmt.Errorf("the value (%q, %d characters) is %w", shorten(s, 4), len(s), ErrMalformedToken)
	}
	return Token(s), nil
}

func wellFormed(s string) bool {
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
