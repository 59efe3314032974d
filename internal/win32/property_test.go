package win32

import (
	"encoding/binary"
	"slices"
	"strings"
	"testing"
	"unicode/utf16"
)

// wide returns s in UTF-16, as Windows has it in memory.
func wide(s string) []byte {
	var data []byte
	for _, unit := range utf16.Encode([]rune(s)) {
		data = binary.LittleEndian.AppendUint16(data, unit)
	}
	return data
}

func TestDecodedProperties(t *testing.T) {
	t.Parallel()
	key := LocationPaths.Key().Category
	for name, test := range map[string]struct {
		property Property
		decode   func(Property) (any, error)
		want     any
	}{
		"text":                       {Property{TypeText, wide("NVIDIA Tesla T4\x00")}, decodeText, "NVIDIA Tesla T4"},
		"text beyond 16 bits":        {Property{TypeText, wide("GPU 😀\x00")}, decodeText, "GPU 😀"},
		"empty text":                 {Property{TypeText, wide("\x00")}, decodeText, ""},
		"text with more behind":      {Property{TypeText, wide("a\x00b\x00")}, decodeText, "a"},
		"half a surrogate pair":      {Property{TypeText, []byte{0x3D, 0xD8, 0, 0}}, decodeText, "\uFFFD"},
		"list":                       {Property{TypeTextList, wide("a\x00bc\x00\x00")}, decodeList, "a|bc"},
		"empty list":                 {Property{TypeTextList, wide("\x00")}, decodeList, ""},
		"list ends at an empty text": {Property{TypeTextList, wide("a\x00\x00b\x00\x00")}, decodeList, "a"},
		"number":                     {Property{TypeUint32, []byte{1, 2, 3, 4}}, decodeUint32, uint32(0x04030201)},
		"long number":                {Property{TypeUint64, []byte{1, 0, 0, 0, 2, 0, 0, 0}}, decodeUint64, uint64(2<<32 | 1)},
		"identifier": {Property{TypeGUID, []byte{
			0x4e, 0x25, 0x5c, 0xa4, 0x1c, 0xdf, 0xfd, 0x4e, 0x80, 0x20, 0x67, 0xd1, 0x46, 0xa8, 0x50, 0xe0,
		}}, decodeGUID, key},
		"true":  {Property{TypeBoolean, []byte{0xFF}}, decodeBool, true},
		"false": {Property{TypeBoolean, []byte{0}}, decodeBool, false},
	} {
		got, err := test.decode(test.property)
		if err != nil || got != test.want {
			t.Errorf("%s: %v, %v, want %v", name, got, err, test.want)
		}
	}
}

func TestPropertiesThatAreRefused(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		property Property
		decode   func(Property) (any, error)
		says     string
	}{
		"text of another type":   {Property{TypeTextList, wide("a\x00\x00")}, decodeText, "type is 0x2012, not 0x12"},
		"no text":                {Property{TypeText, nil}, decodeText, "no end"},
		"text without an end":    {Property{TypeText, wide("abc")}, decodeText, "no end"},
		"text of odd length":     {Property{TypeText, []byte{'a', 0, 0}}, decodeText, "3 bytes are no UTF-16"},
		"list of another type":   {Property{TypeText, wide("a\x00\x00")}, decodeList, "type is 0x12, not 0x2012"},
		"no list":                {Property{TypeTextList, nil}, decodeList, "text 1 of the list: the text has no end"},
		"list without an end":    {Property{TypeTextList, wide("a\x00b\x00")}, decodeList, "text 3 of the list: the text has no end"},
		"list of odd length":     {Property{TypeTextList, append(wide("a\x00"), 0)}, decodeList, "text 1 of the list: 5 bytes"},
		"short number":           {Property{TypeUint32, []byte{1, 2, 3}}, decodeUint32, "3 bytes, not 4"},
		"long for a number":      {Property{TypeUint32, []byte{1, 2, 3, 4, 5}}, decodeUint32, "5 bytes, not 4"},
		"number of another type": {Property{TypeUint64, make([]byte, 8)}, decodeUint32, "type is 0x9, not 0x7"},
		"short long number":      {Property{TypeUint64, make([]byte, 4)}, decodeUint64, "4 bytes, not 8"},
		"short identifier":       {Property{TypeGUID, make([]byte, 15)}, decodeGUID, "15 bytes, not 16"},
		"neither true nor false": {Property{TypeBoolean, []byte{1}}, decodeBool, "0x01 is neither"},
		"no truth":               {Property{TypeBoolean, nil}, decodeBool, "0 bytes, not 1"},
	} {
		got, err := test.decode(test.property)
		if err == nil || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: %v, %v, want an error that says %q", name, got, err, test.says)
		}
	}
}

func decodeText(p Property) (any, error)   { return p.Text() }
func decodeUint32(p Property) (any, error) { return p.Uint32() }
func decodeUint64(p Property) (any, error) { return p.Uint64() }
func decodeGUID(p Property) (any, error)   { return p.GUID() }
func decodeBool(p Property) (any, error)   { return p.Bool() }

func decodeList(p Property) (any, error) {
	list, err := p.TextList()
	return strings.Join(list, "|"), err
}

func FuzzProperty(f *testing.F) {
	for _, seed := range []Property{
		{TypeText, wide("NVIDIA Tesla T4\x00")},
		{TypeText, wide("no end")},
		{TypeTextList, wide("PCIROOT(0)#PCI(1B00)\x00ACPI(_SB_)#ACPI(PCI0)\x00\x00")},
		{TypeTextList, append(wide("odd\x00\x00"), 1)},
		{TypeUint32, []byte{1, 2, 3, 4}},
		{TypeUint64, []byte{1, 2, 3, 4, 5, 6, 7, 8}},
		{TypeGUID, make([]byte, 16)},
		{TypeBoolean, []byte{0xFF}},
	} {
		f.Add(uint32(seed.Type), seed.Data)
	}
	f.Fuzz(func(t *testing.T, kind uint32, data []byte) {
		p := Property{PropertyType(kind), data}
		text, err := p.Text()
		if err == nil && (p.Type != TypeText || strings.Contains(text, "\x00") || len(text) > 3*len(data)/2) {
			t.Errorf("%v has the text %q", p, text)
		}
		list, err := p.TextList()
		if err == nil {
			if p.Type != TypeTextList || slices.Contains(list, "") {
				t.Errorf("%v has the list %q", p, list)
			}
			// What was read, written again, reads the same.
			again, err := Property{TypeTextList, wide(strings.Join(append(list, "", ""), "\x00"))}.TextList()
			if err != nil || !slices.Equal(again, list) {
				t.Errorf("%q came back as %q, %v", list, again, err)
			}
		}
		if _, err := p.Uint32(); (err == nil) != (p.Type == TypeUint32 && len(data) == 4) {
			t.Errorf("%v as a number: %v", p, err)
		}
		if _, err := p.Uint64(); (err == nil) != (p.Type == TypeUint64 && len(data) == 8) {
			t.Errorf("%v as a long number: %v", p, err)
		}
		if _, err := p.GUID(); (err == nil) != (p.Type == TypeGUID && len(data) == 16) {
			t.Errorf("%v as an identifier: %v", p, err)
		}
		if _, err := p.Bool(); err == nil && (p.Type != TypeBoolean || len(data) != 1) {
			t.Errorf("%v is a truth", p)
		}
	})
}
