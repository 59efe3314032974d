package regf

import (
	"bytes"
	"encoding/binary"
	"testing"

	"www.velocidex.com/golang/regparser"
)

func TestEmptyHiveIsReadAsOneEmptyKey(t *testing.T) {
	t.Parallel()
	hive := Empty("SOFTWARE")
	registry, err := regparser.NewRegistry(bytes.NewReader(hive))
	if err != nil {
		t.Fatal(err)
	}
	root := registry.OpenKey("")
	if root == nil {
		t.Fatal("the hive has no root key")
	}
	if root.Name() != "ROOT" || len(root.Subkeys()) != 0 || len(root.Values()) != 0 {
		t.Errorf("the root is %q with %d keys and %d values, want ROOT with none", root.Name(), len(root.Subkeys()), len(root.Values()))
	}
	base := registry.BaseBlock
	if base.Sequence1() != base.Sequence2() {
		t.Error("the hive looks as if it were not written to its end")
	}
	if base.Length() != uint32(len(hive)-pageSize) {
		t.Errorf("the header says %d bytes of cells, there are %d", base.Length(), len(hive)-pageSize)
	}
}

// Windows checks that cells follow each other without a gap.
func TestCellsFillTheBin(t *testing.T) {
	t.Parallel()
	bin := Empty("SAM")[pageSize:]
	var used, free int
	for at := binHeader; at < len(bin); {
		size := int32(binary.LittleEndian.Uint32(bin[at:]))
		switch {
		case size < 0:
			used++
			size = -size
		default:
			free++
		}
		if size < 8 || size%8 != 0 || at+int(size) > len(bin) {
			t.Fatalf("the cell at %#x has the size %d", at, size)
		}
		at += int(size)
	}
	if used != 2 || free != 1 {
		t.Errorf("there are %d cells in use and %d free ones, want 2 and 1", used, free)
	}
}

func TestChecksumOfHeader(t *testing.T) {
	t.Parallel()
	words := func(list ...uint32) []byte {
		var b []byte
		for _, word := range list {
			b = binary.LittleEndian.AppendUint32(b, word)
		}
		return b
	}
	for name, c := range map[string]struct {
		header []byte
		want   uint32
	}{
		"exclusive or":            {words(0x12345678, 0x00FF00FF), 0x12CB5687},
		"zero is reserved":        {words(7, 7), 1},
		"all ones are reserved":   {words(0xFFFFFFFF, 0), 0xFFFFFFFE},
		"one word is its own sum": {words(5), 5},
	} {
		if got := checksum(c.header); got != c.want {
			t.Errorf("%s: %#x, want %#x", name, got, c.want)
		}
	}
	header := Empty("SYSTEM")[:pageSize]
	if got, want := binary.LittleEndian.Uint32(header[508:]), checksum(header[:508]); got != want {
		t.Errorf("the header has the checksum %#x, want %#x", got, want)
	}
}

func TestLongNamesAreCutShort(t *testing.T) {
	t.Parallel()
	hive := Empty("a name that is longer than the header's place for names")
	if binary.LittleEndian.Uint16(hive[48+nameLength-2:]) != 0 {
		t.Error("the name in the header has no end")
	}
	if len(hive) != 2*pageSize {
		t.Errorf("the hive has %d bytes, want %d", len(hive), 2*pageSize)
	}
}
