package allocation

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
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

// nameOnlyPrefix is the prefix of a UID that stands for the pod's name.
const nameOnlyPrefix = "name:"

// NameOnly reports whether the UID is not known and the pod's name stands for it.
func (h Holder) NameOnly() bool { return strings.HasPrefix(h.PodUID, nameOnlyPrefix) }

// Replica is one replica of one GPU.
type Replica struct {
	// ID is the replica's device ID in the device plugin API.
	ID string `json:"id"`
	// InstanceID is the PnP instance ID of the replica's GPU.
	InstanceID string `json:"instanceID"`
	// UUID is the driver's identifier of the GPU, "" if unknown.
	UUID string `json:"uuid,omitempty"`
}

// Record is the allocation of replicas of one resource to one container.
type Record struct {
	ID ID `json:"id"`
	// Sequence orders the records of a node: a newer one has a larger number. The
	// clock may be set back, so CreatedAt does not.
	Sequence uint64 `json:"sequence"`
	// Resource is the extended resource's name, directx.microsoft.com/display.
	Resource string `json:"resource"`
	// Replicas are in the order of the kubelet.
	Replicas  []Replica `json:"replicas"`
	CreatedAt time.Time `json:"createdAt"`
	// Injected reports that the container got devices from the kubelet, and no token.
	Injected bool `json:"injected,omitempty"`
}

// Holder is the container that a record is bound to.
type Holder struct {
	// PodUID and Container identify the holder.
	PodUID    string `json:"podUID"`
	Container string `json:"container"`
	// PodNamespace and PodName may be empty.
	PodNamespace string `json:"podNamespace,omitempty"`
	PodName      string `json:"podName,omitempty"`
}

// Same reports whether h and other are one container of one pod. A restarted container
// is the same; one of a recreated pod with the same name is not.
func (h Holder) Same(other Holder) bool {
	return h.PodUID == other.PodUID && h.Container == other.Container
}

func (h Holder) String() string {
	return fmt.Sprintf("container %q of pod %s/%s (%s)", h.Container, h.PodNamespace, h.PodName, h.PodUID)
}

// binding is the content of a binding file.
type binding struct {
	ID      ID        `json:"id"`
	Holder  Holder    `json:"holder"`
	BoundAt time.Time `json:"boundAt"`
}

const (
	apiVersion = "directx.microsoft.com/v1alpha1"
	// maxFileBytes is enough for a container with all replicas of 64 GPUs × 256, with
	// instance IDs of 200 characters.
	maxFileBytes = 16 << 20
)

// envelope is the format of all files. The checksum is that of the body's bytes in the
// file.
type envelope struct {
	APIVersion string          `json:"apiVersion"`
	Kind       string          `json:"kind"`
	Body       json.RawMessage `json:"body"`
	SHA256     string          `json:"sha256"`
}

func encode(c content) ([]byte, error) {
	raw, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	data, err := json.Marshal(envelope{APIVersion: apiVersion, Kind: c.kind(), Body: raw, SHA256: checksum(raw)})
	if err != nil {
		return nil, err
	}
	return append(data, '\n'), nil
}

// content is the decoded body of a file.
type content interface {
	// kind returns the kind of its file.
	kind() string
	// check returns an error if it is not whole, or that of another allocation.
	check(id ID) error
}

// decode decodes the file of an allocation, and refuses content that is damaged or not
// as encoded.
func decode(data []byte, id ID, c content) error {
	if len(data) > maxFileBytes {
		return fmt.Errorf("it is longer than %d bytes", maxFileBytes)
	}
	var e envelope
	err := strictJSON(data, &e)
	switch {
	case err != nil:
		return err
	case e.Kind != c.kind() || e.APIVersion != apiVersion:
		return fmt.Errorf("it is a %q of version %q, want %q of %q", e.Kind, e.APIVersion, c.kind(), apiVersion)
	case e.SHA256 != checksum(e.Body):
		return errors.New("its checksum does not match")
	}
	if err := strictJSON(e.Body, c); err != nil {
		return err
	}
	return c.check(id)
}

func (r *Record) kind() string { return "Allocation" }

func (r *Record) check(id ID) error {
	incomplete := func(r Replica) bool { return r.ID == "" || r.InstanceID == "" }
	switch {
	case r.ID != id:
		return fmt.Errorf("it is the record of another allocation (%s)", shorten(string(r.ID), 40))
	case r.Resource == "" || len(r.Replicas) == 0 || slices.ContainsFunc(r.Replicas, incomplete):
		return errors.New("it names no resource or no replica")
	}
	return nil
}

func (b *binding) kind() string { return "AllocationBinding" }

func (b *binding) check(id ID) error {
	switch {
	case b.ID != id:
		return fmt.Errorf("it is the binding of another allocation (%s)", shorten(string(b.ID), 40))
	case b.Holder.PodUID == "" || b.Holder.Container == "":
		return errors.New("it names no pod or no container")
	}
	return nil
}

func checksum(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// strictJSON decodes data, and refuses unknown fields and trailing data.
func strictJSON(data []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("unexpected data after the end")
	}
	return nil
}
