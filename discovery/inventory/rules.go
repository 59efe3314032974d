package inventory

import (
	"errors"
	"fmt"
	"math/bits"
	"path"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"directx-nri/discovery"
	"directx-nri/internal/winpath"
)

// The rules for single values. Each is a pure function of the text; the error
// says what is wrong and, after a semicolon, what to write.

func checkInstanceID(id string) error {
	switch {
	case utf8.RuneCountInString(id) > maxInstanceID:
		return fmt.Errorf("has %d characters; at most %d are allowed", utf8.RuneCountInString(id), maxInstanceID)
	case strings.TrimSpace(id) != id:
		return errors.New("begins or ends with white space; remove it")
	case strings.Contains(id, "::"), strings.HasSuffix(id, ":"):
		return errors.New(`contains "::" or ends with ":"; replica IDs use "::" as their separator, so name the device without it`)
	}
	return nil
}

func parseVendorID(text string) (discovery.VendorID, error) {
	digits, found := cutHexPrefix(text)
	id, err := strconv.ParseUint(digits, 16, 16)
	if !found || err != nil || id == 0 {
		return 0, fmt.Errorf("%s is not a PCI vendor ID; write 1 to 4 hexadecimal digits such as 0x10DE, or leave the key out", quote(text))
	}
	return discovery.VendorID(id), nil
}

// parseLUID reads 0xHIGH_0xLOW, as discovery.LUID prints it, and 0xNUMBER.
func parseLUID(text string) (discovery.LUID, error) {
	luid, ok := discovery.ParseLUID(text)
	if !ok {
		return 0, fmt.Errorf("%s is not a LUID; write it as 0x00000000_0x0000C2F5 or 0xC2F5", quote(text))
	}
	if luid == 0 {
		return 0, errors.New("is 0, which no adapter has; leave the key out")
	}
	return luid, nil
}

func cutHexPrefix(text string) (digits string, found bool) {
	if digits, found = strings.CutPrefix(text, "0x"); found {
		return digits, true
	}
	return strings.CutPrefix(text, "0X")
}

// parseMemory reads a number of bytes.
func parseMemory(text string) (uint64, error) {
	digits, shift := text, 0
	for _, unit := range []struct {
		suffix string
		shift  int
	}{{"Ki", 10}, {"Mi", 20}, {"Gi", 30}} {
		if number, found := strings.CutSuffix(text, unit.suffix); found {
			digits, shift = number, unit.shift
		}
	}
	n, err := parseDecimal(digits)
	if err != nil || bits.Len64(n)+shift > 64 {
		return 0, fmt.Errorf("%s is not an amount of memory; write bytes, or a whole number with Ki, Mi or Gi, less than 2^64 bytes in all", quote(text))
	}
	return n << shift, nil
}

// parseDecimal reads a decimal number in its one plain form: no sign, no
// leading zeros (octal elsewhere), no separators.
func parseDecimal(text string) (uint64, error) {
	if len(text) > 1 && text[0] == '0' || strings.HasPrefix(text, "+") {
		return 0, strconv.ErrSyntax
	}
	return strconv.ParseUint(text, 10, 64)
}

func parseNUMANode(text string) (int, error) {
	n, err := parseDecimal(text)
	if err != nil || n > maxNUMANode {
		return 0, fmt.Errorf("%s is not a NUMA node; write a number from 0 to %d, or leave the key out when the node is not known", quote(text), maxNUMANode)
	}
	return int(n), nil
}

func checkVersion(text string) error {
	parts := strings.Split(text, ".")
	for _, part := range parts {
		_, err := strconv.ParseUint(part, 10, 16)
		if err != nil || len(parts) > 4 {
			return fmt.Errorf("%s is not a driver version; write 1 to 4 numbers up to 65535 joined by dots, such as 31.0.15.5222", quote(text))
		}
	}
	return nil
}

// checkLocationPath checks elements of the form NAME(argument), joined by #.
// The argument of PCIROOT and PCI is hexadecimal.
// https://learn.microsoft.com/windows-hardware/drivers/install/devpkey-device-locationpaths
func checkLocationPath(text string) error {
	if len(text) > maxText {
		return fmt.Errorf("has %d characters; at most %d are allowed", len(text), maxText)
	}
	for element := range strings.SplitSeq(text, "#") {
		name, argument, found := strings.Cut(element, "(")
		argument, closed := strings.CutSuffix(argument, ")")
		pci := strings.EqualFold(name, "PCI") || strings.EqualFold(name, "PCIROOT")
		if !found || !closed || !isName(name) || !isName(argument) || pci && !isHex(argument) {
			return fmt.Errorf("%s is not a location path element; write NAME(number) elements joined by '#', such as PCIROOT(0)#PCI(1B00)", quote(element))
		}
	}
	return nil
}

func isName(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return r > unicode.MaxASCII || !unicode.IsLetter(r) && !unicode.IsDigit(r) && r != '_'
	})
}

func isHex(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool { return !strings.ContainsRune("0123456789abcdefABCDEF", r) })
}

// cleanStorePath checks and cleans the driver store path: a folder on a local
// drive, since neither drivers nor container mounts come from elsewhere.
func cleanStorePath(p string) (string, error) {
	clean := winpath.Clean(p)
	root, below := clean[:min(len(clean), 3)], clean[min(len(clean), 3):]
	if len(p) > maxPath || !winpath.IsAbs(root) || !strings.HasSuffix(root, `:\`) || !winpath.IsLocal(below) {
		return "", fmt.Errorf(`%s is not an absolute Windows path of a folder; write it with its drive, such as C:\Windows\System32\DriverStore\FileRepository\nv_dispi.inf_amd64_0123456789abcdef`, quote(p))
	}
	return clean, nil
}

// cleanRuntimeFile checks and cleans a file's path below a folder.
func cleanRuntimeFile(p string) (string, error) {
	clean := winpath.Clean(p)
	if len(p) > maxPath || !winpath.IsLocal(p) || clean == "." {
		return "", fmt.Errorf(`%s is not a file below a folder; write a relative Windows path such as nvcuda64.dll, without drive, "..", ":" or wildcards`, quote(p))
	}
	for element := range strings.SplitSeq(clean, `\`) {
		if strings.TrimRight(element, ". ") != element {
			return "", fmt.Errorf("%s ends with a dot or a space, which Windows drops; remove it", quote(element))
		}
	}
	return clean, nil
}

func checkPOSIXPath(p string) error {
	switch {
	case len(p) > maxPath:
		return fmt.Errorf("has %d bytes; at most %d are allowed", len(p), maxPath)
	case !path.IsAbs(p):
		return fmt.Errorf("%s is not an absolute path; begin it with /", quote(p))
	case path.Clean(p) != p:
		return fmt.Errorf("%s is not a clean path; write %s", quote(p), quote(path.Clean(p)))
	case p == "/":
		return errors.New("is the root folder; name a file or a folder in it")
	}
	return nil
}

// fold returns a string that is the same for all that strings.EqualFold, and
// so discovery.Find, takes for equal.
func fold(s string) string {
	return strings.Map(func(r rune) rune {
		least := r
		for next := unicode.SimpleFold(r); next != r; next = unicode.SimpleFold(next) {
			least = min(least, next)
		}
		return least
	}, s)
}
