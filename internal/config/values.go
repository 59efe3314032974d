package config

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/cli"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/winpath"
)

// cleaner is implemented by types of texts. Its method checks a text and returns the value
// that it stands for.
type cleaner interface {
	clean(text string) (string, error)
}

// resourceName is the name of an extended resource, valid for the API server.
// https://kubernetes.io/docs/tasks/administer-cluster/extended-resource-node/
type resourceName string

func (resourceName) clean(name string) (string, error) {
	domain, _, found := strings.Cut(name, "/")
	switch {
	case !found:
		return "", fmt.Errorf("%q is not an extended resource: use a name such as directx.microsoft.com/display", name)
	case domain == "kubernetes.io" || strings.HasSuffix(domain, ".kubernetes.io"):
		return "", fmt.Errorf("%q is in the domain of Kubernetes: use one of your own", name)
	case strings.HasPrefix(domain, "requests."):
		return "", fmt.Errorf("%q has the prefix of resource quotas", name)
	}
	// The name of its quota must be valid, too.
	if messages := validation.IsQualifiedName("requests." + name); len(messages) > 0 {
		return "", fmt.Errorf("%q is not an extended resource: %s", name, messages[0])
	}
	return name, nil
}

// oneOrMore is a list, or its only item.
type oneOrMore[T any] []T

func (oneOrMore[T]) shorthand() {}

// memory is a number of bytes, which may have a unit: 15Gi, 15GiB, 16106127360.
type memory string

func (memory) clean(text string) (string, error) {
	if _, err := humanize.ParseBytes(text); err != nil {
		return "", fmt.Errorf("%q is not an amount of memory: use bytes, or a unit as in 15Gi", text)
	}
	return text, nil
}

// bytes returns the number, 0 if there is none.
func (m memory) bytes() uint64 {
	n, _ := humanize.ParseBytes(string(m))
	return n
}

func memoryOf(bytes uint64) memory {
	switch {
	case bytes == 0:
		return ""
	case bytes%(1<<30) == 0:
		return memory(fmt.Sprintf("%dGi", bytes>>30))
	}
	return memory(strconv.FormatUint(bytes, 10))
}

// driverVersion is the version of a driver, of one to four numbers.
type driverVersion string

func (driverVersion) clean(text string) (string, error) {
	_, err := policy.ParseDriverVersion(text, 0)
	return text, err
}

// fill returns the version with the numbers that are left out, and zeros if there is none.
func (v driverVersion) fill(missing uint16) policy.DriverVersion {
	version, _ := policy.ParseDriverVersion(string(v), missing)
	return version
}

func driverVersionOf(version policy.DriverVersion) driverVersion {
	if version == (policy.DriverVersion{}) {
		return ""
	}
	return driverVersion(version.String())
}

// pattern is a pattern of a GPU's name or location path.
type pattern string

func (pattern) clean(text string) (string, error) {
	if strings.TrimSpace(text) != text {
		return "", fmt.Errorf("%q begins or ends with a space", text)
	}
	return text, limits{"maxLength": {"256"}}.checkText(text)
}

// vendor is a PCI vendor ID, by name or number.
type vendor uint16

// vendors are the vendors that have a name in config.yaml.
func vendors() map[string]discovery.VendorID {
	return map[string]discovery.VendorID{
		"amd": discovery.VendorAMD, "intel": discovery.VendorIntel, "microsoft": discovery.VendorMicrosoft,
		"nvidia": discovery.VendorNVIDIA, "qualcomm": discovery.VendorQualcomm,
	}
}

// UnmarshalText implements [encoding.TextUnmarshaler]. A number has 0x, or is decimal, which
// Helm makes of all numbers (4318 is 0x10DE). It refuses 0 and forms that are ambiguous: a
// leading zero, and a known vendor's hexadecimal digits without 0x (8086).
func (v *vendor) UnmarshalText(text []byte) error {
	if id, ok := vendors()[string(text)]; ok {
		*v = vendor(id)
		return nil
	}
	s := string(text)
	n, err := strconv.ParseUint(s, 0, 16)
	if err != nil || n == 0 || len(s) > 1 && s[0] == '0' && !strings.ContainsAny(s[1:2], "xX") || isVendorWithout0x(s) {
		known := append(slices.Sorted(maps.Keys(vendors())), "a PCI vendor ID such as 0x10DE")
		return fmt.Errorf("%q is not a vendor: %s", s, cli.Want(s, known))
	}
	*v = vendor(n)
	return nil
}

func isVendorWithout0x(text string) bool {
	digits, err := strconv.ParseUint(text, 16, 16)
	for _, id := range vendors() {
		if err == nil && digits == uint64(id) {
			return true
		}
	}
	return false
}

// MarshalText implements [encoding.TextMarshaler].
func (v vendor) MarshalText() ([]byte, error) {
	for name, id := range vendors() {
		if vendor(id) == v {
			return []byte(name), nil
		}
	}
	return fmt.Appendf(nil, "0x%04X", uint16(v)), nil
}

// sourcePattern is the path of a file below the driver store path, or a pattern of several.
type sourcePattern string

func (sourcePattern) clean(path string) (string, error) {
	clean := winpath.Clean(path)
	if !winpath.IsLocalGlob(path) || clean == "." || strings.Contains(path, "..") || endsBadly(clean) {
		return "", fmt.Errorf(`%q is not a file below the driver store path: use a relative Windows path such as nvidia-smi.exe or bin\*.dll`, path)
	}
	return clean, nil
}

// fileName is the name of a file in System32 or SysWOW64.
type fileName string

func (fileName) clean(name string) (string, error) {
	if !winpath.IsLocal(name) || winpath.Base(name) != name || endsBadly(name) {
		return "", fmt.Errorf("%q is not a file name", name)
	}
	return name, nil
}

// storePath is a driver store path: a directory on a local drive.
type storePath string

func (storePath) clean(path string) (string, error) {
	clean := winpath.Clean(path)
	root, below := clean[:min(len(clean), 3)], clean[min(len(clean), 3):]
	if !winpath.IsAbs(root) || !strings.HasSuffix(root, `:\`) || !winpath.IsLocal(below) {
		return "", fmt.Errorf(`%q is not the absolute Windows path of a directory, with its drive`, path)
	}
	return clean, nil
}

// luid is a locally unique ID of an adapter.
type luid discovery.LUID

// UnmarshalText implements [encoding.TextUnmarshaler].
func (l *luid) UnmarshalText(text []byte) error {
	id, ok := discovery.ParseLUID(string(text))
	if !ok || id == 0 {
		return fmt.Errorf("%q is not a LUID: use 0x00000000_0x0000C2F5 or 0xC2F5", text)
	}
	*l = luid(id)
	return nil
}
