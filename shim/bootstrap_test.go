package shim

import (
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
)

func text(b []byte, number protowire.Number, value string) []byte {
	return protowire.AppendString(protowire.AppendTag(b, number, protowire.BytesType), value)
}

func TestBootstrapVersion(t *testing.T) {
	t.Parallel()
	result := text(protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 3), 2, `\\.\pipe\x`)
	for answer, want := range map[string]int{
		`\\.\pipe\containerd-shim-1-pipe`: 2, "npipe:////./pipe/x\n": 2, "unix:///run/containerd/s/1": 2, `{"version":3,"address":"x","protocol":"ttrpc"}` + "\n": 3,
		`{"version":1}`: 2, `{"version":`: 2, string(result): 3,
	} {
		if got := bootstrapVersion([]byte(answer)); got != want {
			t.Errorf("%q: %d", answer, got)
		}
	}
}

func FuzzBootstrapVersion(f *testing.F) {
	f.Add([]byte(`{"version":3}`))
	f.Add(text(nil, 2, "x"))
	f.Fuzz(func(_ *testing.T, answer []byte) { bootstrapVersion(answer) })
}
