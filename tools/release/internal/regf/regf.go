// Package regf writes an empty registry hive: the smallest file that Windows
// loads as one.
//
// Microsoft publishes no specification. The layout is the one that
// https://github.com/msuhanov/regf/blob/master/Windows%20registry%20file%20format%20specification.md
// describes.
package regf

import (
	"encoding/binary"
	"unicode/utf16"

	"directx-nri/tools/release/internal/secdesc"
)

const (
	pageSize   = 4096
	binHeader  = 32
	noCell     = 0xFFFFFFFF
	nameLength = 64 // bytes for the file's name in the base block

	keyHiveEntry = 0x0004 // the root of a hive
	keyNoDelete  = 0x0008
	keyASCIIName = 0x0020
)

// Empty returns a hive with a root key and nothing in it. name is written into
// its header, as Windows does with the end of the file's path. All times in it
// are unset.
func Empty(name string) []byte {
	const rootCell = binHeader
	root := cell(rootKey())
	securityCell := uint32(rootCell + len(root))
	security := cell(securityKey(securityCell))
	binary.LittleEndian.PutUint32(root[4+44:], securityCell)

	bin := make([]byte, binHeader, pageSize)
	copy(bin, "hbin")
	binary.LittleEndian.PutUint32(bin[8:], pageSize)
	bin = append(bin, root...)
	bin = append(bin, security...)
	free := pageSize - len(bin)
	bin = binary.LittleEndian.AppendUint32(bin, uint32(free)) // A positive size is a free cell.
	bin = append(bin, make([]byte, free-4)...)
	return append(baseBlock(name, rootCell, uint32(len(bin))), bin...)
}

// baseBlock is the file's header. Format 1.3 is the oldest that today's Windows
// writes; what newer ones add, an empty hive has not.
func baseBlock(name string, rootCell, size uint32) []byte {
	b := make([]byte, pageSize)
	copy(b, "regf")
	for _, field := range []struct{ offset, value uint32 }{
		{4, 1}, {8, 1}, // Both sequence numbers: equal, so nothing is to be recovered.
		{20, 1}, {24, 3}, // Format 1.3.
		{28, 0}, {32, 1}, // A primary file, to be loaded into memory.
		{36, rootCell},
		{40, size},
		{44, 1}, // Clustering factor.
	} {
		binary.LittleEndian.PutUint32(b[field.offset:], field.value)
	}
	for i, unit := range utf16.Encode([]rune(name)) {
		if 2*i+2 > nameLength-2 {
			break
		}
		binary.LittleEndian.PutUint16(b[48+2*i:], unit)
	}
	binary.LittleEndian.PutUint32(b[508:], checksum(b[:508]))
	return b
}

// checksum is the exclusive or of the header's words; two values are reserved.
func checksum(header []byte) uint32 {
	var sum uint32
	for i := 0; i < len(header); i += 4 {
		sum ^= binary.LittleEndian.Uint32(header[i:])
	}
	switch sum {
	case 0:
		return 1
	case 0xFFFFFFFF:
		return 0xFFFFFFFE
	}
	return sum
}

func rootKey() []byte {
	const name = "ROOT"
	b := make([]byte, 76, 76+len(name))
	copy(b, "nk")
	binary.LittleEndian.PutUint16(b[2:], keyHiveEntry|keyNoDelete|keyASCIIName)
	for _, offset := range []int{16, 28, 32, 40, 48} { // Parent, both lists of keys, values, class.
		binary.LittleEndian.PutUint32(b[offset:], noCell)
	}
	binary.LittleEndian.PutUint16(b[72:], uint16(len(name)))
	return append(b, name...)
}

// securityKey is the root's security descriptor. at is its own cell, for the
// ring of descriptors in which it is alone.
func securityKey(at uint32) []byte {
	descriptor := secdesc.New(
		secdesc.Allow{Inherit: secdesc.ContainerInherit, Mask: secdesc.KeyAll, Who: secdesc.Administrators()},
		secdesc.Allow{Inherit: secdesc.ContainerInherit, Mask: secdesc.KeyAll, Who: secdesc.System()},
		secdesc.Allow{Inherit: secdesc.ContainerInherit, Mask: secdesc.KeyRead, Who: secdesc.Users()},
	)
	b := []byte{'s', 'k', 0, 0}
	b = binary.LittleEndian.AppendUint32(b, at)
	b = binary.LittleEndian.AppendUint32(b, at)
	b = binary.LittleEndian.AppendUint32(b, 1) // Keys that use it.
	b = binary.LittleEndian.AppendUint32(b, uint32(len(descriptor)))
	return append(b, descriptor...)
}

// cell puts the size before data, negative as of a cell in use, and rounds up to
// eight bytes.
func cell(data []byte) []byte {
	size := (4 + len(data) + 7) &^ 7
	b := make([]byte, size)
	binary.LittleEndian.PutUint32(b, uint32(-int32(size)))
	copy(b[4:], data)
	return b
}
