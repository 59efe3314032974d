package win32

import (
	"encoding/binary"
	"slices"
	"strings"
	"testing"
	"unicode/utf16"
)

// wide encodes s as UTF-16.
func wide(s string) []byte {
	var data []byte
	for _, unit := range utf16.Encode([]rune(s)) {
		data = binary.LittleEndian.AppendUint16(data, unit)
	}
	return data
}

func TestDecodedProperties(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		property Property
		decode   func(Property) (any, error)
		want     any
	}{
		"text":                       {Property{TypeText, wide("NVIDIA Tesla T4\x00")}, decodeText, "NVIDIA Tesla T4"},
		"text beyond 16 bits":        {Property{TypeText, wide("GPU 😀\x00")}, decodeText, "GPU 😀"},
		"text without terminator":    {Property{TypeText, wide("abc")}, decodeText, "abc"},
		"empty text":                 {Property{TypeText, wide("\x00")}, decodeText, ""},
		"text with more after it":    {Property{TypeText, wide("a\x00b\x00")}, decodeText, "a"},
		"half a surrogate pair":      {Property{TypeText, []byte{0x3D, 0xD8, 0, 0}}, decodeText, "\uFFFD"},
		"list":                       {Property{TypeTextList, wide("a\x00bc\x00\x00")}, decodeList, "a|bc"},
		"empty list":                 {Property{TypeTextList, wide("\x00")}, decodeList, ""},
		"list without terminators":   {Property{TypeTextList, wide("a\x00b")}, decodeList, "a|b"},
		"list with one terminator":   {Property{TypeTextList, wide("a\x00b\x00")}, decodeList, "a|b"},
		"no data":                    {Property{TypeTextList, nil}, decodeList, ""},
		"list ends at an empty text": {Property{TypeTextList, wide("a\x00\x00b\x00\x00")}, decodeList, "a"},
		"number":                     {Property{TypeUint32, []byte{1, 2, 3, 4}}, decodeUint32, uint32(0x04030201)},
		"64-bit number":              {Property{TypeUint64, []byte{1, 0, 0, 0, 2, 0, 0, 0}}, decodeUint64, uint64(2<<32 | 1)},
		"signed 64-bit number":       {Property{TypeInt64, []byte{1, 0, 0, 0, 0, 0, 0, 0x80}}, decodeUint64, uint64(1<<63 | 1)},
	} {
		got, err := test.decode(test.property)
		if err != nil || got != test.want {
			t.Errorf("%s: %v, %v, want %v", name, got, err, test.want)
		}
	}
}

func TestInvalidProperties(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		property Property
		decode   func(Property) (any, error)
		says     string
	}{
		"text of another type":   {Property{TypeTextList, wide("a\x00\x00")}, decodeText, "type 0x2012, want 0x12"},
		"text of odd length":     {Property{TypeText, []byte{'a', 0, 0}}, decodeText, "3 bytes of UTF-16"},
		"list of another type":   {Property{TypeText, wide("a\x00\x00")}, decodeList, "type 0x12, want 0x2012"},
		"list of odd length":     {Property{TypeTextList, append(wide("a\x00"), 0)}, decodeList, "5 bytes of UTF-16"},
		"short number":           {Property{TypeUint32, []byte{1, 2, 3}}, decodeUint32, "3 bytes, want 4"},
		"long number":            {Property{TypeUint32, []byte{1, 2, 3, 4, 5}}, decodeUint32, "5 bytes, want 4"},
		"number of another type": {Property{TypeUint64, make([]byte, 8)}, decodeUint32, "type 0x9, want 0x7"},
		"short 64-bit number":    {Property{TypeUint64, make([]byte, 4)}, decodeUint64, "4 bytes, want 8"},
	} {
		got, err := test.decode(test.property)
		if err == nil || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: %v, %v, want an error with %q", name, got, err, test.says)
		}
	}
}

func decodeText(p Property) (any, error)   { return p.Text() }
func decodeUint32(p Property) (any, error) { return p.Uint32() }
func decodeUint64(p Property) (any, error) { return p.Uint64() }

func decodeList(p Property) (any, error) {
	list, err := p.TextList()
	return strings.Join(list, "|"), err
}

func FuzzProperty(f *testing.F) {
	for _, seed := range []Property{
		{TypeText, wide("NVIDIA Tesla T4\x00")},
		{TypeText, wide("without terminator")},
		{TypeTextList, wide("PCIROOT(0)#PCI(1B00)\x00ACPI(_SB_)#ACPI(PCI0)\x00\x00")},
		{TypeTextList, append(wide("odd\x00\x00"), 1)},
		{TypeUint32, []byte{1, 2, 3, 4}},
		{TypeUint64, []byte{1, 2, 3, 4, 5, 6, 7, 8}},
	} {
		f.Add(seed.Type, seed.Data)
	}
	f.Fuzz(func(t *testing.T, kind uint32, data []byte) {
		p := Property{kind, data}
		text, err := p.Text()
		if err == nil && (p.Type != TypeText || strings.Contains(text, "\x00") || len(text) > 3*len(data)/2) {
			t.Errorf("%v has the text %q", p, text)
		}
		list, err := p.TextList()
		if err == nil {
			if p.Type != TypeTextList || slices.Contains(list, "") {
				t.Errorf("%v has the list %q", p, list)
			}
			// The list survives a round trip.
			again, err := Property{TypeTextList, wide(strings.Join(append(list, "", ""), "\x00"))}.TextList()
			if err != nil || !slices.Equal(again, list) {
				t.Errorf("%q came back as %q, %v", list, again, err)
			}
		}
		if _, err := p.Uint32(); (err == nil) != (p.Type == TypeUint32 && len(data) == 4) {
			t.Errorf("%v as a number: %v", p, err)
		}
		if _, err := p.Uint64(); (err == nil) != ((p.Type == TypeUint64 || p.Type == TypeInt64) && len(data) == 8) {
			t.Errorf("%v as a 64-bit number: %v", p, err)
		}
	})
}
