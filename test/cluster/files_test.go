//go:build e2e && linux

package cluster

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// volatile are files that the cluster's components change with every pod. containerd
// leaves its NRI socket behind when NRI is disabled.
var volatile = []string{
	"/run/containerd", "/run/netns", "/run/nri", "/run/runc", "/var/lib/cni", "/var/lib/containerd", "/var/log",
	"/var/lib/kubelet/pods", "/var/lib/kubelet/plugins", "/var/lib/kubelet/plugins_registry", "/var/lib/kubelet/pod-resources",
	"/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint",
}

// files returns the node's files by path, with their modes and content, except for the
// volatile ones.
func (m *machine) files(t testing.TB) map[string]string {
	t.Helper()
	files := make(map[string]string)
	for _, root := range []string{"/etc", "/opt/containerd", "/opt/nri", "/run", binDir, "/var/lib"} {
		err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			switch {
			case errors.Is(err, fs.ErrNotExist): // It was removed meanwhile.
				return nil
			case err != nil:
				return err
			case !slices.Contains(volatile, path):
				files[path], err = describe(path, entry)
				return err
			case entry.IsDir():
				return fs.SkipDir
			}
			return nil
		})
		if err != nil {
			t.Fatalf("list the node's files: %v", err)
		}
	}
	return files
}

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
	// The kubelet rewrites its state at any time.
	case info.Mode().IsRegular() && !strings.HasPrefix(path, kubeletRoot+"/"):
		data, err := os.ReadFile(path)
		if err != nil {
			return "", err
		}
		text += fmt.Sprintf(" %d bytes, SHA-256 %x", len(data), sha256.Sum256(data))
	}
	return text, nil
}
