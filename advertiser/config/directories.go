package config

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/directx-nri/directx-nri/internal/winpath"
)

// splitDrive returns a cleaned Windows path and its part after the drive. It also reports whether the
// path is absolute and has a drive.
func splitDrive(path string) (clean, below string, ok bool) {
	clean = winpath.Clean(path)
	root, below := clean[:min(len(clean), 3)], clean[min(len(clean), 3):]
	return clean, below, winpath.IsAbs(root) && strings.HasSuffix(root, `:\`)
}

// cleanDirectory checks and cleans the absolute path of a directory on a system.
func cleanDirectory(nodeOS, p string) (string, error) {
	if nodeOS == "windows" {
		clean, below, ok := splitDrive(p)
		if !ok || below != "" && !winpath.IsLocal(below) || strings.Contains(p, "..") || winpath.LooksShort(below) {
			return "", fmt.Errorf(`%q is not the absolute path of a directory: use a drive and long names, such as C:\Tools`, p)
		}
		return clean, nil
	}
	if !path.IsAbs(p) || path.Clean(p) != p {
		return "", fmt.Errorf("%q is not a clean absolute path such as /opt/tools", p)
	}
	return p, nil
}

// windowsSecretDirs returns directories, of every drive, that only the node's own
// programs may read: accounts, keys, tokens and the files of other containers.
func windowsSecretDirs() []string {
	return []string{
		`Windows\System32\config`, `Windows\System32\Microsoft\Protect`, `Windows\NTDS`, `Windows\repair`, `Windows\ServiceProfiles`,
		`Windows\System32\LogFiles`, `Windows\System32\winevt`, `Windows\System32\Tasks`,
		`Windows\Tasks`, `Windows\Temp`, `Windows\Panther`, `Windows\Security`, `Windows\MEMORY.DMP`,
		`Users`, `Documents and Settings`, `System Volume Information`, `$Recycle.Bin`,
		`ProgramData\directx-nri`, `ProgramData\containerd`, `ProgramData\docker`, `ProgramData\ssh`,
		`ProgramData\Amazon`, `ProgramData\Kubernetes`, `ProgramData\Microsoft\Crypto`, `ProgramData\Microsoft\Protect`,
		`ProgramData\Microsoft\Windows\Containers`, `ProgramData\Microsoft\Windows\Hyper-V`,
		`Program Files\containerd`, `Program Files\Kubernetes`, `k`, `hpc`, `etc`, `run`, `opt\cni`, `var\lib`, `var\log`, `AzureData`,
	}
}

// linuxSecretDirs is [windowsSecretDirs] for Linux. The kubelet's files are below /var/snap with
// MicroK8s, and can be in /mnt/aks on AKS. Links are not followed, because the compiler need not run
// on the node.
func linuxSecretDirs() []string {
	return []string{
		"/etc", "/root", "/home", "/boot", "/proc", "/sys", "/dev", "/run", "/tmp",
		"/var/run", "/var/tmp", "/var/log", "/var/spool", "/var/backups",
		"/var/lib/kubelet", "/var/lib/containerd", "/var/lib/docker", "/var/lib/containers",
		"/var/lib/etcd", "/var/lib/cni", "/var/lib/cloud", "/var/lib/rancher", "/var/lib/minikube",
		"/var/lib/k0s", "/var/snap", "/mnt/aks", "/srv/kubernetes",
	}
}

// checkHostDirectory returns an error if dir is, contains or is below a directory with secrets: a
// well-known one, or one of reserved.
func checkHostDirectory(nodeOS, dir string, reserved []string) error {
	within, secrets := isWithinPOSIX, linuxSecretDirs()
	if nodeOS == "windows" {
		within, secrets = winpath.EqualOrBelow, nil
		drive := dir[:min(len(dir), 3)]
		if len(dir) <= 3 {
			return errors.New("a whole drive contains the node's secrets: use a directory that has only what pods may read")
		}
		for _, secret := range windowsSecretDirs() {
			secrets = append(secrets, drive+secret)
		}
	}
	for _, secret := range slices.Concat(secrets, reserved) {
		if secret != "" && (within(secret, dir) || within(dir, secret)) {
			return fmt.Errorf("%q contains or is part of %s, which has the node's secrets: use a directory that has only what pods may read", dir, secret)
		}
	}
	return nil
}

func isWithinPOSIX(dir, p string) bool {
	return dir == "/" || p == dir || strings.HasPrefix(p, dir+"/")
}
