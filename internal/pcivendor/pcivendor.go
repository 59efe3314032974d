// Package pcivendor knows the PCI vendor IDs of those who make DirectX drivers, and
// reads such IDs as people and programs write them.
// https://pcisig.com/membership/member-companies
package pcivendor

import (
	"strconv"
	"strings"
)

// The vendors with DirectX drivers.
const (
	AMD       = 0x1002
	NVIDIA    = 0x10DE
	Microsoft = 0x1414
	Qualcomm  = 0x5143
	Intel     = 0x8086
)

// Parse reads a vendor ID as a whole number of YAML: with 0x, and in decimal too,
// which Helm makes of all numbers (4318 is 0x10DE). Two forms mean something else to
// other readers, and are refused: a leading zero, which may be octal, and digits that
// are a known vendor's in hexadecimal (8086), whose 0x was forgotten. No vendor is 0.
func Parse(text string) (id uint16, ok bool) {
	n, err := strconv.ParseUint(text, 0, 16)
	if err != nil || n == 0 || len(text) > 1 && text[0] == '0' && !strings.ContainsAny(text[1:2], "xXoObB") {
		return 0, false
	}
	if digits, err := strconv.ParseUint(text, 16, 16); err == nil {
		switch digits {
		case AMD, NVIDIA, Microsoft, Qualcomm, Intel:
			return 0, false
		}
	}
	return uint16(n), true
}
