package secdesc

import (
	"encoding/hex"
	"testing"
)

// The layout by hand, after MS-DTYP 2.4.6; baselayer's test on Windows has
// Windows itself read descriptors.
func TestDescriptorOfOneEntry(t *testing.T) {
	t.Parallel()
	const want = "01000490" + "14000000" + "24000000" + "00000000" + "30000000" + // header
		"01020000000000052000000020020000" + // owner S-1-5-32-544
		"010100000000000512000000" + // group S-1-5-18
		"02001c0001000000" + "00031400ff011f00" + "010100000000000512000000" // one entry
	got := hex.EncodeToString(New(Allow{Inherit: ObjectInherit | ContainerInherit, Mask: FileAll, Who: System()}))
	if got != want {
		t.Errorf("the descriptor is\n%s, want\n%s", got, want)
	}
}
