package inventory

import (
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"directx-nri/discovery"
	"directx-nri/internal/pcivendor"
	"directx-nri/internal/quantity"
	"directx-nri/internal/strictyaml"
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
	id, ok := pcivendor.Parse(text)
	if !ok {
		return 0, fmt.Errorf("%s is not a PCI vendor ID; write 0x and 1 to 4 hexadecimal digits, as in 0x10DE, or leave the key out", strictyaml.Quote(text))
	}
	return discovery.VendorID(id), nil
}

// parseLUID reads 0xHIGH_0xLOW, as discovery.LUID prints it, and 0xNUMBER.
func parseLUID(text string) (discovery.LUID, error) {
	luid, ok := discovery.ParseLUID(text)
	if !ok {
		return 0, fmt.Errorf("%s is not a LUID; write it as 0x00000000_0x0000C2F5 or 0xC2F5", strictyaml.Quote(text))
	}
	if luid == 0 {
		return 0, errors.New("is 0, which no adapter has; leave the key out")
	}
	return luid, nil
}

func parseNUMANode(text string) (int, error) {
	n, err := quantity.ParseDecimal(text)
	if err != nil || n > maxNUMANode {
		return 0, fmt.Errorf("%s is not a NUMA node; write a number from 0 to %d, or leave the key out when the node is not known", strictyaml.Quote(text), maxNUMANode)
	}
	return int(n), nil
}

func checkVersion(text string) error {
	parts := strings.Split(text, ".")
	for _, part := range parts {
		_, err := strconv.ParseUint(part, 10, 16)
		if err != nil || len(parts) > 4 {
			return fmt.Errorf("%s is not a driver version; write 1 to 4 numbers up to 65535 joined by dots, such as 31.0.15.5222", strictyaml.Quote(text))
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
			return fmt.Errorf("%s is not a location path element; write NAME(number) elements joined by '#', such as PCIROOT(0)#PCI(1B00)", strictyaml.Quote(element))
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
		return "", fmt.Errorf(`%s is not an absolute Windows path of a folder; write it with its drive, such as C:\Windows\System32\DriverStore\FileRepository\nv_dispi.inf_amd64_0123456789abcdef`, strictyaml.Quote(p))
	}
	return clean, nil
}

// cleanRuntimeFile checks and cleans a file's path below a folder.
func cleanRuntimeFile(p string) (string, error) {
	clean := winpath.Clean(p)
	if len(p) > maxPath || !winpath.IsLocal(p) || clean == "." {
		return "", fmt.Errorf(`%s is not a file below a folder; write a relative Windows path such as nvcuda64.dll, without drive, "..", ":" or wildcards`, strictyaml.Quote(p))
	}
	for element := range strings.SplitSeq(clean, `\`) {
		if strings.TrimRight(element, ". ") != element {
			return "", fmt.Errorf("%s ends with a dot or a space, which Windows drops; remove it", strictyaml.Quote(element))
		}
	}
	return clean, nil
}

func checkPOSIXPath(p string) error {
	switch {
	case len(p) > maxPath:
		return fmt.Errorf("has %d bytes; at most %d are allowed", len(p), maxPath)
	case !path.IsAbs(p):
		return fmt.Errorf("%s is not an absolute path; begin it with /", strictyaml.Quote(p))
	case path.Clean(p) != p:
		return fmt.Errorf("%s is not a clean path; write %s", strictyaml.Quote(p), strictyaml.Quote(path.Clean(p)))
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

// checkUUID checks a UUID in the form that NVIDIA's driver has.
func checkUUID(text string) error {
	digits, ours := strings.CutPrefix(text, "GPU-")
	groups := strings.Split(digits, "-")
	lengths := []int{8, 4, 4, 4, 12}
	good := ours && len(groups) == len(lengths)
	for i := 0; good && i < len(lengths); i++ {
		good = len(groups[i]) == lengths[i] && isHex(groups[i])
	}
	if !good {
		return fmt.Errorf("%s is not a GPU's UUID; write it as nvidia-smi -L does, such as GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", strictyaml.Quote(text))
	}
	return nil
}

// pciPlace is a place on the PCI bus as Windows has it: see [discovery.Device].
type pciPlace struct{ bus, address uint32 }

// parsePCIAddress reads segment:bus:device.function, all hexadecimal.
func parsePCIAddress(text string) (pciPlace, error) {
	wrong := fmt.Errorf("%s is not a place on the PCI bus; write segment:bus:device.function, such as 0000:1B:00.0", strictyaml.Quote(text))
	parts := strings.FieldsFunc(text, func(r rune) bool { return r == ':' || r == '.' })
	if len(parts) != 4 {
		return pciPlace{}, wrong
	}
	var numbers [4]uint32
	for i, limit := range [4]uint64{0xFFFF, 0xFF, 0x1F, 7} {
		n, err := strconv.ParseUint(parts[i], 16, 32)
		if err != nil || n > limit {
			return pciPlace{}, wrong
		}
		numbers[i] = uint32(n)
	}
	if canonical := fmt.Sprintf("%04X:%02X:%02X.%X", numbers[0], numbers[1], numbers[2], numbers[3]); !strings.EqualFold(canonical, text) {
		return pciPlace{}, wrong
	}
	return pciPlace{bus: numbers[0]<<8 | numbers[1], address: numbers[2]<<16 | numbers[3]}, nil
}
