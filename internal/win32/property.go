package win32

import (
	"encoding/binary"
	"fmt"
	"strings"
)

// The supported types of properties.
// https://learn.microsoft.com/windows-hardware/drivers/install/property-data-type-identifiers
const (
	typeUint32     = 0x07
	typeInt64      = 0x08
	typeUint64     = 0x09
	typeString     = 0x12
	typeStringList = 0x2012
)

// Property is the encoded value of a property.
type Property struct {
	Type uint32 // DEVPROPTYPE
	Data []byte
}

// StringValue decodes a [typeString] property.
func (p Property) StringValue() (string, error) {
	list, err := p.strings(typeString)
	return strings.Join(list[:min(len(list), 1)], ""), err
}

// StringList decodes a [typeStringList] property, whose last string is empty.
func (p Property) StringList() ([]string, error) { return p.strings(typeStringList) }

func (p Property) strings(kind uint32) ([]string, error) {
	if err := p.check(kind, 0); err != nil {
		return nil, err
	}
	return Strings(p.Data)
}

// Uint32 decodes a [typeUint32] property.
func (p Property) Uint32() (uint32, error) {
	if err := p.check(typeUint32, 4); err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint32(p.Data), nil
}

// Uint64 decodes a [typeUint64] property, or the bits of a [typeInt64] one.
func (p Property) Uint64() (uint64, error) {
	if p.Type == typeInt64 {
		p.Type = typeUint64
	}
	if err := p.check(typeUint64, 8); err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint64(p.Data), nil
}

// check returns an error for a property of another type, or of another size unless size is 0.
func (p Property) check(want uint32, size int) error {
	if p.Type != want {
		return fmt.Errorf("type 0x%X, want 0x%X", p.Type, want)
	}
	if size > 0 && len(p.Data) != size {
		return fmt.Errorf("%d bytes, want %d", len(p.Data), size)
	}
	return nil
}
