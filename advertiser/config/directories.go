package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/directx-nri/directx-nri/internal/winpath"
)

// checkDirectory returns an error if p, which the schema permits, is no path of a system.
func checkDirectory(nodeOS, p string) error {
	if hasDrive := len(p) >= 3 && p[1:3] == `:\`; hasDrive != (nodeOS == "windows") {
		return fmt.Errorf("%q is not an absolute path on %s", p, nodeOS)
	}
	return nil
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

// checkHostDirectory returns an error if dir is no directory, or if it is, contains or is below a
// directory with secrets: a well-known one, or one of reserved.
func checkHostDirectory(nodeOS, dir string, reserved []string) error {
	if err := checkDirectory(nodeOS, dir); err != nil {
		return err
	}
	within, secrets := isWithinPOSIX, linuxSecretDirs()
	if nodeOS == "windows" {
		within, secrets = winpath.EqualOrBelow, nil
		for _, secret := range windowsSecretDirs() {
			secrets = append(secrets, dir[:3]+secret)
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
	return p == dir || strings.HasPrefix(p, dir+"/")
}
