//go:build e2e && linux

package bed

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// churn are the places in which the cluster's own parts keep what changes with
// every pod. containerd leaves its socket for NRI plugins when NRI is turned off.
var churn = []string{
	"/run/containerd", "/run/netns", "/run/nri", "/run/runc", "/var/lib/cni", "/var/lib/containerd", "/var/log",
	"/var/lib/kubelet/pods", "/var/lib/kubelet/plugins", "/var/lib/kubelet/plugins_registry", "/var/lib/kubelet/pod-resources",
	"/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint",
}

// Files returns what there is in the node's folders, by path, with what it is: all
// but what the cluster's own parts change with every pod.
func (c *Cluster) Files(t testing.TB) map[string]string {
	t.Helper()
	files := make(map[string]string)
	for _, root := range []string{"/etc", "/opt/containerd", "/opt/nri", "/run", bin, "/var/lib"} {
		err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil // It went meanwhile.
			}
			if err != nil {
				return err
			}
			for _, folder := range churn {
				switch {
				case path != folder:
				case entry.IsDir():
					return fs.SkipDir
				default:
					return nil
				}
			}
			what, err := describe(path, entry)
			if err == nil {
				files[path] = what
			}
			return err
		})
		if err != nil {
			t.Fatalf("look at the node's files: %v", err)
		}
	}
	return files
}

// describe says what a file is: its kind and permissions, and its content.
func describe(path string, entry fs.DirEntry) (string, error) {
	info, err := entry.Info()
	if err != nil {
		return "", err
	}
	text := info.Mode().String()
	switch {
	case info.Mode().Type() == fs.ModeSymlink:
		target, err := os.Readlink(path)
		return text + " to " + target, err
	// The kubelet writes its own state whenever it likes.
	case info.Mode().IsRegular() && !strings.HasPrefix(path, kubeletRoot+"/"):
		data, err := os.ReadFile(path)
		if err != nil {
			return "", err
		}
		text += fmt.Sprintf(" %d bytes, SHA-256 %x", len(data), sha256.Sum256(data))
	}
	return text, nil
}
