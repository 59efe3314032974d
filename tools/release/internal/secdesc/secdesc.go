// Package secdesc encodes Windows security descriptors, in the self-relative
// form that files in layers and keys in registry hives carry.
//
// https://learn.microsoft.com/en-us/openspecs/windows_protocols/ms-dtyp/7d4dac05-9cef-4563-a058-f108abecce1d
package secdesc

import "encoding/binary"

// SID is a security identifier of Windows' own authority, by its
// subauthorities.
type SID []uint32

// Administrators is BUILTIN\Administrators, S-1-5-32-544.
func Administrators() SID { return SID{32, 544} }

// Users is BUILTIN\Users, S-1-5-32-545.
func Users() SID { return SID{32, 545} }

// System is NT AUTHORITY\SYSTEM, S-1-5-18.
func System() SID { return SID{18} }

// Access masks.
//
// https://learn.microsoft.com/en-us/windows/win32/fileio/file-security-and-access-rights
// https://learn.microsoft.com/en-us/windows/win32/sysinfo/registry-key-security-and-access-rights
const (
	FileAll         uint32 = 0x001F01FF
	FileReadExecute uint32 = 0x001200A9
	KeyAll          uint32 = 0x000F003F
	KeyRead         uint32 = 0x00020019
)

// Inheritance of an entry by what is below.
const (
	ObjectInherit    byte = 0x1
	ContainerInherit byte = 0x2
)

// Allow is an entry that allows an account something.
type Allow struct {
	Inherit byte
	Mask    uint32
	Who     SID
}

const (
	revision      = 1
	aclRevision   = 2
	headerLength  = 20
	daclPresent   = 0x0004
	daclProtected = 0x1000
	selfRelative  = 0x8000
)

// New encodes a descriptor: Administrators own the object, its group is System,
// and nothing is inherited from above.
func New(entries ...Allow) []byte {
	owner, group, acl := Administrators().encode(), System().encode(), encodeACL(entries)
	b := []byte{revision, 0}
	b = binary.LittleEndian.AppendUint16(b, selfRelative|daclPresent|daclProtected)
	b = binary.LittleEndian.AppendUint32(b, headerLength)
	b = binary.LittleEndian.AppendUint32(b, uint32(headerLength+len(owner)))
	b = binary.LittleEndian.AppendUint32(b, 0) // No audit entries.
	b = binary.LittleEndian.AppendUint32(b, uint32(headerLength+len(owner)+len(group)))
	b = append(b, owner...)
	b = append(b, group...)
	return append(b, acl...)
}

func (s SID) encode() []byte {
	b := []byte{revision, byte(len(s)), 0, 0, 0, 0, 0, 5} // Authority 5 is Windows NT's.
	for _, sub := range s {
		b = binary.LittleEndian.AppendUint32(b, sub)
	}
	return b
}

func encodeACL(entries []Allow) []byte {
	var aces []byte
	for _, entry := range entries {
		sid := entry.Who.encode()
		aces = append(aces, 0, entry.Inherit) // Type 0 allows.
		aces = binary.LittleEndian.AppendUint16(aces, uint16(8+len(sid)))
		aces = binary.LittleEndian.AppendUint32(aces, entry.Mask)
		aces = append(aces, sid...)
	}
	b := []byte{aclRevision, 0}
	b = binary.LittleEndian.AppendUint16(b, uint16(8+len(aces)))
	b = binary.LittleEndian.AppendUint16(b, uint16(len(entries)))
	b = append(b, 0, 0)
	return append(b, aces...)
}
