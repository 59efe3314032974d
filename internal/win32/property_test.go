package win32

import (
	"encoding/binary"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/directx-nri/directx-nri/internal/testutil"
)

// wide encodes s as UTF-16.
func wide(s string) []byte {
	var data []byte
	for _, unit := range utf16.Encode([]rune(s)) {
		data = binary.LittleEndian.AppendUint16(data, unit)
	}
	return data
}

func TestProperties(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		property Property
		decode   func(Property) (any, error)
		want     any
		err      string // part of the error
	}{
		"text":                       {property: Property{typeString, wide("NVIDIA Tesla T4\x00")}, decode: decodeText, want: "NVIDIA Tesla T4"},
		"text without terminator":    {property: Property{typeString, wide("abc")}, decode: decodeText, want: "abc"},
		"text with more after it":    {property: Property{typeString, wide("a\x00b\x00")}, decode: decodeText, want: "a"},
		"half a surrogate pair":      {property: Property{typeString, []byte{0x3D, 0xD8, 0, 0}}, decode: decodeText, want: "\uFFFD"},
		"text of another type":       {property: Property{typeStringList, wide("a\x00\x00")}, decode: decodeText, err: "type 0x2012, want 0x12"},
		"text of odd length":         {property: Property{typeString, []byte{'a', 0, 0}}, decode: decodeText, err: "3 bytes of UTF-16"},
		"list":                       {property: Property{typeStringList, wide("a\x00bc\x00\x00")}, decode: decodeList, want: "a|bc"},
		"list with one terminator":   {property: Property{typeStringList, wide("a\x00b\x00")}, decode: decodeList, want: "a|b"},
		"list ends at an empty text": {property: Property{typeStringList, wide("a\x00\x00b\x00\x00")}, decode: decodeList, want: "a"},
		"number":                     {property: Property{typeUint32, []byte{1, 2, 3, 4}}, decode: decodeUint32, want: uint32(0x04030201)},
		"short number":               {property: Property{typeUint32, []byte{1, 2, 3}}, decode: decodeUint32, err: "3 bytes, want 4"},
		"number of another type":     {property: Property{typeUint64, make([]byte, 8)}, decode: decodeUint32, err: "type 0x9, want 0x7"},
		"64-bit number":              {property: Property{typeUint64, []byte{1, 0, 0, 0, 2, 0, 0, 0}}, decode: decodeUint64, want: uint64(2<<32 | 1)},
		"signed 64-bit number":       {property: Property{typeInt64, []byte{1, 0, 0, 0, 0, 0, 0, 0x80}}, decode: decodeUint64, want: uint64(1<<63 | 1)},
	} {
		got, err := test.decode(test.property)
		testutil.CheckError(t, name, err, test.err)
		if err == nil && got != test.want {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
	}
}

func decodeText(p Property) (any, error)   { return p.StringValue() }
func decodeUint32(p Property) (any, error) { return p.Uint32() }
func decodeUint64(p Property) (any, error) { return p.Uint64() }

func decodeList(p Property) (any, error) {
	list, err := p.StringList()
	return strings.Join(list, "|"), err
}
