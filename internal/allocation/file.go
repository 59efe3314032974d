package allocation

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// binding is the body of a binding file.
type binding struct {
	ID      ID        `json:"id"`
	Holder  Holder    `json:"holder"`
	BoundAt time.Time `json:"boundAt"`
}

const (
	recordSuffix  = ".json"
	bindingSuffix = ".bound"

	// apiVersion changes if older programs must not ignore what newer programs write.
	apiVersion = "directx.microsoft.com/v1alpha1"
	// maxFileBytes is enough for a container with all replicas of 64 GPUs × 256, with
	// instance IDs of 200 characters.
	maxFileBytes = 16 << 20
)

// envelope is the format of all files. SHA256 is the checksum of Body: no damaged file may grant a GPU.
type envelope struct {
	APIVersion string          `json:"apiVersion"`
	Kind       string          `json:"kind"`
	Body       json.RawMessage `json:"body"`
	SHA256     string          `json:"sha256"`
}

func encode(body fileBody) ([]byte, error) {
	raw, bodyErr := json.Marshal(body)
	data, err := json.Marshal(envelope{APIVersion: apiVersion, Kind: body.kind(), Body: raw, SHA256: checksum(raw)})
	return append(data, '\n'), errors.Join(bodyErr, err)
}

// fileBody is the decoded body of a file.
type fileBody interface {
	// kind returns the kind of its file.
	kind() string
	// validate returns an error if it is incomplete, or belongs to another allocation.
	validate(id ID) error
}

// decode decodes the file of an allocation into body. It refuses a file that is damaged, and ignores
// unknown fields, which a newer version can have written.
func decode(data []byte, id ID, body fileBody) error {
	if len(data) > maxFileBytes {
		return fmt.Errorf("it is longer than %d bytes", maxFileBytes)
	}
	var e envelope
	err := json.Unmarshal(data, &e)
	switch {
	case err != nil:
		return err
	case e.Kind != body.kind() || e.APIVersion != apiVersion:
		return fmt.Errorf("it is a %q of version %q, want %q of %q", e.Kind, e.APIVersion, body.kind(), apiVersion)
	case e.SHA256 != checksum(e.Body):
		return errors.New("its checksum does not match")
	}
	if err := json.Unmarshal(e.Body, body); err != nil {
		return err
	}
	return body.validate(id)
}

func (r *Record) kind() string { return "Allocation" }

func (r *Record) validate(id ID) error {
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

func (b *binding) validate(id ID) error {
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

// splitName splits the name of a file into the ID of its allocation and its suffix, "" if it
// has none.
func splitName(name string) (id ID, suffix string) {
	for _, suffix := range []string{recordSuffix, bindingSuffix} {
		if base, found := strings.CutSuffix(name, suffix); found && isWellFormed(base) {
			return ID(base), suffix
		}
	}
	return "", ""
}
