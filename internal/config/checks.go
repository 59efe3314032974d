package config

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/winpath"
)

// checkResourceName checks the name of an extended resource as the API server does.
// https://kubernetes.io/docs/tasks/administer-cluster/extended-resource-node/
func checkResourceName(name string) error {
	domain, _, found := strings.Cut(name, "/")
	switch {
	case !found:
		return fmt.Errorf("%q is not an extended resource: use a name such as directx.microsoft.com/display", name)
	case domain == "kubernetes.io" || strings.HasSuffix(domain, ".kubernetes.io"):
		return fmt.Errorf("%q is in the domain of Kubernetes: use one of your own", name)
	case strings.HasPrefix(domain, "requests."):
		return fmt.Errorf("%q has the prefix of resource quotas", name)
	}
	// The name of its quota must be valid, too.
	if messages := validation.IsQualifiedName("requests." + name); len(messages) > 0 {
		return fmt.Errorf("%q is not an extended resource: %s", name, messages[0])
	}
	return nil
}

// vendorIDs returns the vendors that have a name in config.yaml.
func vendorIDs() map[string]discovery.VendorID {
	return map[string]discovery.VendorID{
		"amd": discovery.VendorAMD, "intel": discovery.VendorIntel, "microsoft": discovery.VendorMicrosoft,
		"nvidia": discovery.VendorNVIDIA, "qualcomm": discovery.VendorQualcomm,
	}
}

// parseVendor returns the PCI vendor ID of a vendor's name or number.
func parseVendor(text string) (uint16, error) {
	if id, ok := vendorIDs()[text]; ok {
		return uint16(id), nil
	}
	id, ok := parsePCIVendor(text)
	if !ok {
		return 0, fmt.Errorf("%q is not a vendor: use amd, intel, microsoft, nvidia, qualcomm, or a PCI vendor ID such as 0x10DE", text)
	}
	return id, nil
}

// parsePCIVendor parses a PCI vendor ID with 0x, or in decimal, which Helm makes of
// all numbers (4318 is 0x10DE). It refuses 0 and forms that are ambiguous: a leading
// zero, and a known vendor's hexadecimal digits without 0x (8086).
func parsePCIVendor(text string) (id uint16, ok bool) {
	n, err := strconv.ParseUint(text, 0, 16)
	if err != nil || n == 0 || len(text) > 1 && text[0] == '0' && !strings.ContainsAny(text[1:2], "xX") {
		return 0, false
	}
	if digits, err := strconv.ParseUint(text, 16, 16); err == nil {
		for _, known := range vendorIDs() {
			if digits == uint64(known) {
				return 0, false
			}
		}
	}
	return uint16(n), true
}

// cleanSource checks and cleans the pattern of a file below the driver store path.
func cleanSource(p string) (string, error) {
	clean := winpath.Clean(p)
	if !winpath.IsLocalGlob(p) || clean == "." || strings.Contains(p, "..") || endsBadly(clean) {
		return "", fmt.Errorf(`%q is not a file below the driver store path: use a relative Windows path such as nvidia-smi.exe or bin\*.dll`, p)
	}
	return clean, nil
}

// endsBadly reports whether an element of a path ends with a dot or a space, which
// Windows removes.
func endsBadly(p string) bool {
	return slices.ContainsFunc(strings.Split(p, `\`), winpath.HasTrailingDot)
}

// checkFileName checks the name of a file in System32 or SysWOW64.
func checkFileName(name string) error {
	if !winpath.IsLocal(name) || winpath.Base(name) != name || name == "." || name == ".." || endsBadly(name) {
		return fmt.Errorf("%q is not a file name", name)
	}
	return nil
}

// cleanDirectory checks and cleans the absolute path of a directory on a system.
func cleanDirectory(os, p string) (string, error) {
	if os == "windows" {
		clean := winpath.Clean(p)
		root, below := clean[:min(len(clean), 3)], clean[min(len(clean), 3):]
		if !winpath.IsAbs(root) || !strings.HasSuffix(root, `:\`) || below != "" && !winpath.IsLocal(below) || strings.Contains(p, "..") || endsBadly(below) || winpath.LooksShort(below) {
			return "", fmt.Errorf(`%q is not the absolute path of a directory: use a drive and long names, such as C:\Tools`, p)
		}
		return clean, nil
	}
	if !path.IsAbs(p) || path.Clean(p) != p {
		return "", fmt.Errorf("%q is not a clean absolute path such as /opt/tools", p)
	}
	return p, nil
}

// windowsSecrets returns directories, of every drive, that only the node's own
// programs may read: accounts, keys, tokens and the files of other containers.
func windowsSecrets() []string {
	return []string{
		`Windows\System32\config`, `Windows\System32\Microsoft\Protect`, `Windows\NTDS`, `Windows\repair`, `Windows\ServiceProfiles`,
		`Windows\System32\LogFiles`, `Windows\System32\winevt`, `Windows\System32\Tasks`, `Windows\Tasks`, `Windows\Temp`, `Windows\Panther`, `Windows\Security`, `Windows\MEMORY.DMP`,
		`Users`, `Documents and Settings`, `System Volume Information`, `$Recycle.Bin`,
		`ProgramData\directx-nri`, `ProgramData\containerd`, `ProgramData\docker`, `ProgramData\Docker`, `ProgramData\Microsoft\Crypto`, `ProgramData\Microsoft\Protect`,
		`ProgramData\Microsoft\Windows\Containers`, `ProgramData\Microsoft\Windows\Hyper-V`, `ProgramData\ssh`, `ProgramData\Amazon`, `ProgramData\Kubernetes`,
		`Program Files\containerd`, `Program Files\Kubernetes`, `k`, `hpc`, `etc`, `run`, `opt\cni`, `var\lib`, `var\log`, `AzureData`,
	}
}

// linuxSecrets is [windowsSecrets] for Linux.
func linuxSecrets() []string {
	return []string{
		"/etc", "/root", "/home", "/boot", "/proc", "/sys", "/dev", "/run", "/tmp", "/var/run", "/var/tmp", "/var/log", "/var/spool", "/var/backups",
		"/var/lib/kubelet", "/var/lib/containerd", "/var/lib/docker", "/var/lib/containers", "/var/lib/etcd", "/var/lib/cni", "/var/lib/cloud", "/var/lib/rancher", "/var/lib/k0s", "/srv/kubernetes",
	}
}

// checkHostDirectory refuses a directory that contains, is, or is part of one with
// secrets: the well-known ones, and own.
func checkHostDirectory(os, dir string, own []string) error {
	within, secrets := withinPOSIX, linuxSecrets()
	if os == "windows" {
		within, secrets = winpath.Within, nil
		drive := dir[:min(len(dir), 3)]
		if len(dir) <= 3 {
			return errors.New("a whole drive contains the node's secrets: use a directory that has only what pods may read")
		}
		for _, secret := range windowsSecrets() {
			secrets = append(secrets, drive+secret)
		}
	}
	for _, secret := range slices.Concat(secrets, own) {
		if secret != "" && (within(secret, dir) || within(dir, secret)) {
			return fmt.Errorf("%q contains or is part of %s, which has the node's secrets: use a directory that has only what pods may read", dir, secret)
		}
	}
	return nil
}

func withinPOSIX(dir, p string) bool {
	return dir == "/" || p == dir || strings.HasPrefix(p, dir+"/")
}
