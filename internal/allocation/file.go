package allocation

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

// binding is the content of a binding file.
type binding struct {
	ID      ID        `json:"id"`
	Holder  Holder    `json:"holder"`
	BoundAt time.Time `json:"boundAt"`
}

const (
	recordSuffix  = ".json"
	bindingSuffix = ".bound"

	// maxFileBytes is enough for a container with all replicas of 64 GPUs × 1024, with
	// instance IDs of 200 characters.
	maxFileBytes = 32 << 20
)

// content is what a file has: a record or a binding.
type content interface {
	// validate returns an error if it is not that of the allocation with the ID, or is incomplete.
	validate(id ID) error
}

// decode decodes the file of an allocation. It ignores unknown fields, which a newer version can have
// written.
func decode(data []byte, id ID, into content) error {
	if err := json.Unmarshal(data, into); err != nil {
		return err
	}
	return into.validate(id)
}

func (r *Record) validate(id ID) error {
	if r.Resource == "" || len(r.Replicas) == 0 {
		return errors.New("it names no resource or no replica")
	}
	return sameID(r.ID, id)
}

func (b *binding) validate(id ID) error { return sameID(b.ID, id) }

func sameID(got, want ID) error {
	if got != want {
		return fmt.Errorf("it is of another allocation (%s)", shorten(string(got), 40))
	}
	return nil
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
