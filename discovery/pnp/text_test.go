package pnp

import (
	"strings"
	"testing"

	"directx-nri/internal/win32"

	"github.com/google/go-cmp/cmp"
)

func TestText(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		kind    uint32
		data    []byte
		want    []string
		wantErr string
	}{
		"list":                      {regMultiString, utf16le("a\x00b\x00\x00"), []string{"a", "b"}, ""},
		"empty first string":        {regMultiString, utf16le("\x00b\x00\x00"), nil, ""},
		"beyond the basic plane":    {regMultiString, utf16le("𝄞\x00\x00"), []string{"𝄞"}, ""},
		"string":                    {regString, utf16le("a b\x00"), []string{"a b"}, ""},
		"string with more after it": {regString, utf16le("a\x00b\x00"), []string{"a"}, ""},
		"empty string":              {regString, utf16le("\x00"), nil, ""},
		"odd size":                  {regMultiString, []byte{'a', 0, 'b'}, nil, "3 bytes"},
		"high surrogate alone":      {regMultiString, []byte{0x00, 0xD8, 'a', 0}, nil, "UTF-16"},
		"number":                    {4, []byte{1, 0, 0, 0}, nil, "registry type 4"},
		"expanded string":           {2, utf16le("%x%\x00"), nil, "registry type 2"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := textOf(win32.RegistryValue{Type: test.kind, Data: test.data})
			if test.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), test.wantErr) {
					t.Errorf("%q, error %v; want %q", got, err, test.wantErr)
				}
				return
			}
			if err != nil {
				t.Error(err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
