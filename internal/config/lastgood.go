package config

import (
	"bytes"
	"errors"
	"io/fs"

	"directx-nri/internal/durable"
)

// KeepLastGood saves a copy of the configuration file at path, if it is good by
// itself, as [ReadOrLastGood] reads it. A file that [Read] would refuse for where
// it is, and one that is not there, has no copy: the shim does not read it
// either. The copy is only replaced by another good one.
func KeepLastGood(path string) error {
	data, err := read(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if checkStrictly(path) != nil {
		return nil
	}
	if _, err := parse(path, &data, nil); err != nil {
		return err
	}
	if have, err := read(path + LastGood); err == nil && bytes.Equal(have, data) {
		return nil
	}
	return durable.Replace(path+LastGood, data, 0o600)
}
