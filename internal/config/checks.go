package config

import (
	"errors"
	"fmt"
	"net/netip"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"directx-nri/internal/pcivendor"
	"directx-nri/internal/strictyaml"
	"directx-nri/internal/winpath"
)

// The rules for single values. Each is a pure function of the text; the error
// says what is wrong and, after a semicolon, what to write.

func rootOfThisSystem() string {
	if runtime.GOOS == "windows" {
		return `its drive, such as C:\`
	}
	return "/"
}

// inRange reads a whole number. One that is too large for any is not possible
// either. 010 is ten to some and eight to others, YAML's schema among them.
func inRange(text string, least, most int) (int, error) {
	n, err := strconv.Atoi(text)
	digits := strings.TrimLeft(text, "+-")
	switch {
	case err == nil && len(digits) > 1 && digits[0] == '0':
		return 0, fmt.Errorf("%s begins with a 0, by which some take it for an octal number; write it without", text)
	case err != nil && !errors.Is(err, strconv.ErrRange):
		return 0, fmt.Errorf("%s is not a whole number; choose %d to %d", strictyaml.Quote(text), least, most)
	case err != nil || n < least || n > most:
		return 0, fmt.Errorf("%s is not possible; choose %d to %d", text, least, most)
	}
	return n, nil
}

func checkIndex(index string) error {
	if len(index) != 2 || !isDigit(index[0]) || !isDigit(index[1]) {
		return fmt.Errorf("%s is not a number from 00 to 99", strictyaml.Quote(index))
	}
	return nil
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

func checkShimRuntime(name string) error {
	if !filepath.IsAbs(name) && filepath.Base(name) != name {
		return fmt.Errorf("%s is neither an absolute path nor a file name", strictyaml.Quote(name))
	}
	return nil
}

// checkAddress checks host:port. The host may be an IP address, a name, or "" for
// all of the node's addresses.
func checkAddress(address string) error {
	wrong := func() error {
		return fmt.Errorf("%s is not host:port; write 127.0.0.1:9400, or :9400 for all of the node's addresses", strictyaml.Quote(address))
	}
	colon := strings.LastIndexByte(address, ':')
	if colon < 0 {
		return wrong()
	}
	host, digits := address[:colon], address[colon+1:]
	port, err := strconv.ParseUint(digits, 10, 16)
	if err != nil || port == 0 || digits[0] == '0' || digits[0] == '+' {
		return wrong()
	}
	if inner, found := strings.CutPrefix(host, "["); found {
		inner, found = strings.CutSuffix(inner, "]")
		if _, err := netip.ParseAddr(inner); err != nil || !found || !strings.Contains(inner, ":") {
			return wrong()
		}
		return nil
	}
	if host != "" && !isHostName(host) {
		return wrong()
	}
	return nil
}

func isHostName(host string) bool {
	return len(host) <= maxDomain && !slices.ContainsFunc(strings.Split(host, "."), func(label string) bool { return !isLabel(strings.ToLower(label)) })
}

const (
	maxDomain = 253 // RFC 1123, and less what the quota's prefix takes
	maxName   = 63
	quota     = "requests."
)

// checkResourceName checks the name of an extended resource, as the kubelet and
// the API server do: domain/name.
// https://kubernetes.io/docs/tasks/administer-cluster/extended-resource-node/
func checkResourceName(name string) error {
	const form = "write one such as directx.microsoft.com/display"
	domain, last, found := strings.Cut(name, "/")
	switch {
	case !found || domain == "" || last == "" || strings.Contains(last, "/"):
		return fmt.Errorf("%s is not the name of an extended resource, domain/name; %s", strictyaml.Quote(name), form)
	case domain == "kubernetes.io" || strings.HasSuffix(domain, ".kubernetes.io"):
		return fmt.Errorf("%s is in Kubernetes' own domain; %s", strictyaml.Quote(name), form)
	case strings.HasPrefix(domain, quota):
		return fmt.Errorf("%s begins with %s, which quotas do; %s", strictyaml.Quote(name), quota, form)
	case len(domain)+len(quota) > maxDomain || slices.ContainsFunc(strings.Split(domain, "."), func(label string) bool { return !isLabel(label) }):
		return fmt.Errorf("%s is not a domain: names of a-z, 0-9 and -, joined by dots, of %d characters at most; %s", strictyaml.Quote(domain), maxDomain-len(quota), form)
	case len(last) > maxName || !isQualified(last):
		return fmt.Errorf("%s is not a resource's name: letters, digits, -, _ and dots, of %d characters at most, with a letter or digit at both ends; %s", strictyaml.Quote(last), maxName, form)
	}
	return nil
}

// isLabel tells a part of a domain. The resource's domain is lower case only.
func isLabel(s string) bool {
	return s != "" && len(s) <= maxName && s[0] != '-' && s[len(s)-1] != '-' &&
		!strings.ContainsFunc(s, func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' })
}

func isQualified(s string) bool {
	alphanumeric := func(r rune) bool { return r <= unicode.MaxASCII && (unicode.IsLetter(r) || unicode.IsDigit(r)) }
	return alphanumeric(rune(s[0])) && alphanumeric(rune(s[len(s)-1])) &&
		!strings.ContainsFunc(s, func(r rune) bool { return !alphanumeric(r) && r != '-' && r != '_' && r != '.' })
}

// vendor is a PCI vendor that has a name here.
type vendor struct {
	name string
	id   uint16
}

// vendors are those whose drivers know containers.
func vendors() []vendor {
	return []vendor{{"amd", pcivendor.AMD}, {"intel", pcivendor.Intel}, {"microsoft", pcivendor.Microsoft}, {"nvidia", pcivendor.NVIDIA}, {"qualcomm", pcivendor.Qualcomm}}
}

func vendorNames() []string {
	var names []string
	for _, v := range vendors() {
		names = append(names, v.name)
	}
	return names
}

func vendorName(id uint16) string {
	for _, v := range vendors() {
		if v.id == id {
			return v.name
		}
	}
	return fmt.Sprintf("0x%04X", id)
}

func parseVendor(text string) (uint16, error) {
	for _, v := range vendors() {
		if v.name == text {
			return v.id, nil
		}
	}
	if id, ok := pcivendor.Parse(text); ok {
		return id, nil
	}
	return 0, fmt.Errorf("%s is not a vendor; write %s, or a PCI vendor ID such as 0x10DE", strictyaml.Quote(text), strictyaml.List(vendorNames()))
}

// parseVersion reads one to four numbers; what is left out becomes missing.
func parseVersion(text string, missing uint16) (DriverVersion, error) {
	version := DriverVersion{missing, missing, missing, missing}
	parts := strings.Split(text, ".")
	for i, part := range parts {
		n, err := strconv.ParseUint(part, 10, 16)
		if err != nil || len(parts) > len(version) {
			return DriverVersion{}, fmt.Errorf("%s is not a driver version; write 1 to 4 numbers up to 65535 joined by dots, such as 31.0.15.5222", strictyaml.Quote(text))
		}
		version[i] = uint16(n)
	}
	if version == (DriverVersion{}) {
		return version, fmt.Errorf("%s is no bound; leave the key out", strictyaml.Quote(text))
	}
	return version, nil
}

// String returns the version with dots between its numbers.
func (v DriverVersion) String() string { return fmt.Sprintf("%d.%d.%d.%d", v[0], v[1], v[2], v[3]) }

// Less tells whether v is before w.
func (v DriverVersion) Less(w DriverVersion) bool { return slices.Compare(v[:], w[:]) < 0 }

// cleanSource checks the glob of a file in the driver store.
func cleanSource(p string) (string, error) {
	clean := winpath.Clean(p)
	if !winpath.IsLocalGlob(p) || clean == "." || strings.Contains(p, "..") || trailing(clean) {
		return "", fmt.Errorf(`%s is not a file below the driver store; write a relative Windows path such as nvidia-smi.exe or bin\*.dll, without drive, ".." or ":"`, strictyaml.Quote(p))
	}
	return clean, nil
}

// trailing tells whether an element of a path ends as Windows lets none end.
func trailing(p string) bool {
	return slices.ContainsFunc(strings.Split(p, `\`), func(element string) bool { return strings.TrimRight(element, ". ") != element })
}

// cleanFileName checks the name of a file in System32 or SysWOW64.
func cleanFileName(name string) (string, error) {
	if !winpath.IsLocal(name) || winpath.Base(name) != name || name == "." || name == ".." || trailing(name) {
		return "", fmt.Errorf("%s is not a file's name; write one such as vulkaninfo.exe", strictyaml.Quote(name))
	}
	return name, nil
}

// cleanContainerFolder checks the absolute path of a folder in a container, or
// on the node, of operating system os.
func cleanContainerFolder(os, p string) (string, error) {
	if os == "windows" {
		clean := winpath.Clean(p)
		root, below := clean[:min(len(clean), 3)], clean[min(len(clean), 3):]
		if !winpath.IsAbs(root) || !strings.HasSuffix(root, `:\`) || below != "" && !winpath.IsLocal(below) || strings.Contains(p, "..") || trailing(below) || winpath.LooksShort(below) {
			return "", fmt.Errorf(`%s is not the absolute path of a folder; write it with its drive and in full, such as C:\Tools`, strictyaml.Quote(p))
		}
		return clean, nil
	}
	if !path.IsAbs(p) || path.Clean(p) != p {
		return "", fmt.Errorf("%s is not a clean absolute path; write one such as /opt/tools", strictyaml.Quote(p))
	}
	return p, nil
}

// secretsOfWindows are folders with what only the node's own programs may read:
// accounts, keys, tokens and other containers' files. They are on every drive.
func secretsOfWindows() []string {
	return []string{
		`Windows\System32\config`, `Windows\System32\Microsoft\Protect`, `Windows\NTDS`, `Windows\repair`, `Windows\ServiceProfiles`,
		`Windows\System32\LogFiles`, `Windows\System32\winevt`, `Windows\System32\Tasks`, `Windows\Tasks`, `Windows\Temp`, `Windows\Panther`, `Windows\Security`, `Windows\MEMORY.DMP`,
		`Users`, `Documents and Settings`, `System Volume Information`, `$Recycle.Bin`,
		`ProgramData\directx-nri`, `ProgramData\containerd`, `ProgramData\docker`, `ProgramData\Docker`, `ProgramData\Microsoft\Crypto`, `ProgramData\Microsoft\Protect`,
		`ProgramData\Microsoft\Windows\Containers`, `ProgramData\Microsoft\Windows\Hyper-V`, `ProgramData\ssh`, `ProgramData\Amazon`, `ProgramData\Kubernetes`,
		`Program Files\containerd`, `Program Files\Kubernetes`, `k`, `hpc`, `etc`, `run`, `opt\cni`, `var\lib`, `var\log`, `AzureData`,
	}
}

// secretsOfLinux are the same on Linux.
func secretsOfLinux() []string {
	return []string{
		"/etc", "/root", "/home", "/boot", "/proc", "/sys", "/dev", "/run", "/tmp", "/var/run", "/var/tmp", "/var/log", "/var/spool", "/var/backups",
		"/var/lib/kubelet", "/var/lib/containerd", "/var/lib/docker", "/var/lib/containers", "/var/lib/etcd", "/var/lib/cni", "/var/lib/cloud", "/var/lib/rancher", "/var/lib/k0s", "/srv/kubernetes",
	}
}

// checkHostFolder refuses a folder of the node that holds, lies in or is a folder
// of secrets: the listed ones and ours.
func checkHostFolder(os, folder string, ours []string) error {
	refuse := func(secret string) error {
		return fmt.Errorf("%s holds or is part of %s, where the node's secrets are; name a folder that has only what pods may read", strictyaml.Quote(folder), secret)
	}
	within, secrets := withinPOSIX, secretsOfLinux()
	if os == "windows" {
		within, secrets = winpath.Within, nil
		drive := folder[:min(len(folder), 3)]
		below := strings.ToUpper(folder[len(drive):]) + `\`
		for _, s := range secretsOfWindows() {
			if closed := strings.ToUpper(s) + `\`; below == `\` || strings.HasPrefix(below, closed) || strings.HasPrefix(closed, below) {
				return refuse(drive + s)
			}
		}
	}
	for _, secret := range append(secrets, ours...) {
		if within(secret, folder) || within(folder, secret) {
			return refuse(secret)
		}
	}
	return nil
}

func withinPOSIX(folder, p string) bool {
	return folder == "/" || p == folder || strings.HasPrefix(p, folder+"/")
}

// checkGlob checks a pattern for texts.
func checkGlob(pattern string) error {
	if len(pattern) > maxGlob {
		return fmt.Errorf("has %d bytes; at most %d are allowed", len(pattern), maxGlob)
	}
	if strings.TrimSpace(pattern) != pattern {
		return errors.New("begins or ends with white space; remove it, or write *")
	}
	return nil
}
