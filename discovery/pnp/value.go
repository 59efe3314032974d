package pnp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unicode/utf16"
	"unicode/utf8"
)

// The REG_ types that hold text.
const (
	regString      = 1 // REG_SZ
	regMultiString = 7 // REG_MULTI_SZ
)

// text returns the strings of a value of type REG_SZ or REG_MULTI_SZ. A list ends
// at its first empty string, which is what Windows itself reads up to; a REG_SZ
// is a list of one. The registry does not make sure that there are terminators,
// so their absence is no error.
func (v Value) text() ([]string, error) {
	if v.Type != regString && v.Type != regMultiString {
		return nil, fmt.Errorf("is of registry type %d, and neither REG_SZ (%d) nor REG_MULTI_SZ (%d)", v.Type, regString, regMultiString)
	}
	if len(v.Data)%2 != 0 {
		return nil, fmt.Errorf("has %d bytes, and text has an even number", len(v.Data))
	}
	units := make([]uint16, len(v.Data)/2)
	for i := range units {
		units[i] = binary.LittleEndian.Uint16(v.Data[2*i:])
	}
	var list []string
	for len(units) > 0 && units[0] != 0 {
		one := units
		for i, unit := range units {
			if unit == 0 {
				one = units[:i]
				break
			}
		}
		text, err := decode(one)
		if err != nil {
			return nil, err
		}
		list = append(list, text)
		if v.Type == regString || len(one) == len(units) {
			break
		}
		units = units[len(one)+1:]
	}
	return list, nil
}

var errNotText = errors.New("is not valid UTF-16, so it can name no file")

// decode refuses what it could not give back unit by unit: a name with a
// replacement character in it would be another file's.
func decode(units []uint16) (string, error) {
	text := make([]byte, 0, len(units))
	for i := 0; i < len(units); i++ {
		r := rune(units[i])
		if utf16.IsSurrogate(r) {
			if i+1 == len(units) {
				return "", errNotText
			}
			i++
			if r = utf16.DecodeRune(r, rune(units[i])); r == utf8.RuneError {
				return "", errNotText
			}
		}
		text = utf8.AppendRune(text, r)
	}
	return string(text), nil
}
