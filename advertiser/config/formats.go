package config

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/pci"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/winpath"
)

// parseFormat checks a string and returns its value. format is the format in a jsonschema tag, ""
// for any string.
func parseFormat(format, text string) (any, error) {
	const notABound = "is not a bound: remove the key"
	clean := winpath.Clean(text)
	switch format {
	case "resource":
		return text, checkResource(text)
	case "vendor":
		return parseVendor(text)
	case "pattern": // of a GPU's name or location path
		return text, errorUnless(strings.TrimSpace(text) == text, text, "begins or ends with a space")
	case "memory", "memoryBound": // bytes, which may have a unit: 15Gi, 16106127360
		memory, ok := parseMemory(text)
		return memory, cmp.Or(errorUnless(ok, text, "is not an amount of memory: use bytes, or Ki, Mi, Gi or Ti, as in 15Gi"),
			errorUnless(memory != 0 || format == "memory", text, notABound))
	case "version":
		_, err := policy.ParseDriverVersion(text, 0)
		return text, err
	case "minVersion":
		version, err := policy.ParseDriverVersion(text, 0)
		return version, cmp.Or(err, errorUnless(!version.IsZero(), text, notABound))
	case "maxVersion":
		return policy.ParseDriverVersion(text, 65535)
	case "luid":
		id, ok := discovery.ParseLUID(text)
		return id, errorUnless(ok && id != 0, text, "is not a LUID: use 0x00000000_0x0000C2F5 or 0xC2F5")
	case "storePath":
		_, below, ok := splitDrive(text)
		return clean, errorUnless(ok && winpath.IsLocal(below), text, "is not the absolute Windows path of a directory, with its drive")
	case "source": // below the driver store path, or a pattern of several
		ok := winpath.IsLocalGlob(text) && clean != "." && !strings.Contains(text, "..")
		return clean, errorUnless(ok, text,
			`is not a file below the driver store path: use a relative Windows path such as nvidia-smi.exe or bin\*.dll`)
	case "runtimeFile":
		ok := winpath.IsLocal(text) && clean != "."
		return clean, errorUnless(ok, text, "is not a file below a directory: use a relative Windows path such as nvcuda64.dll")
	case "fileName":
		ok := winpath.IsLocal(text) && winpath.Base(text) == text && text != "."
		return text, errorUnless(ok, text, "is not a file name")
	case "linuxPath":
		ok := path.IsAbs(text) && path.Clean(text) == text && text != "/"
		return text, errorUnless(ok, text, "is not a clean absolute path of a file or directory")
	}
	return text, nil
}

// errorUnless returns nil if ok, and otherwise an error about text with a message.
func errorUnless(ok bool, text, message string) error {
	if !ok {
		return fmt.Errorf("%q %s", text, message)
	}
	return nil
}

// parseMemory returns a number of bytes. ok is false if text is no amount, or more than 64 bits.
func parseMemory(text string) (memory uint64, ok bool) {
	shift := 0
	for i, unit := range []string{"Ki", "Mi", "Gi", "Ti"} {
		if number, found := strings.CutSuffix(text, unit); found {
			text, shift = number, 10*(i+1)
			break
		}
	}
	n, err := strconv.ParseUint(text, 10, 64)
	return n << shift, err == nil && n<<shift>>shift == n
}

// checkResource checks the name of an extended resource as the API server does.
// https://kubernetes.io/docs/tasks/administer-cluster/extended-resource-node/
func checkResource(name string) error {
	domain, _, found := strings.Cut(name, "/")
	switch {
	case !found:
		return fmt.Errorf("%q is not an extended resource: use a name such as directx.microsoft.com/display", name)
	case domain == "kubernetes.io" || strings.HasSuffix(domain, ".kubernetes.io"):
		return fmt.Errorf("%q is in the domain of Kubernetes: use one of your own", name)
	case strings.HasPrefix(domain, "requests."):
		return fmt.Errorf("%q has the prefix of resource quotas", name)
	}
	// The name of its resource quota must be valid, too.
	if messages := validation.IsQualifiedName("requests." + name); len(messages) > 0 {
		return fmt.Errorf("%q is not an extended resource: %s", name, messages[0])
	}
	return nil
}

// parseVendor returns a PCI vendor ID. Numbers without 0x are decimal, because Helm writes all
// numbers so (4318 is 0x10DE). parseVendor refuses 0, and ambiguous numbers: with a leading zero,
// and a known vendor's hexadecimal digits without 0x (8086).
func parseVendor(text string) (pci.Vendor, error) {
	var choices []string
	for vendor := range pci.VendorNames() {
		if vendor.String() == text {
			return vendor, nil
		}
		choices = append(choices, vendor.String())
	}
	n, err := strconv.ParseUint(text, 0, 16)
	digits, hexErr := strconv.ParseUint(text, 16, 16)
	without0x := hexErr == nil && pci.VendorNames()[pci.Vendor(digits)] != ""
	if err != nil || n == 0 || len(text) > 1 && text[0] == '0' && !strings.ContainsAny(text[1:2], "xX") || without0x {
		slices.Sort(choices)
		return 0, fmt.Errorf("%q is not a vendor: want %s, or a PCI vendor ID such as 0x10DE", text, strings.Join(choices, ", "))
	}
	return pci.Vendor(n), nil
}
