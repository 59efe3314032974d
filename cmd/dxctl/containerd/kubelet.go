package containerd

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/directx-nri/directx-nri/internal/access"
	"github.com/directx-nri/directx-nri/internal/remedy"
)

// CheckKubelet returns an error if one of the programs is a kubelet that does not start again after a
// restart. On Windows, the kubelet 1.31.0 does not remove its old socket (CleanupPluginDirectory in
// pkg/kubelet/cm/devicemanager/manager.go).
// https://github.com/kubernetes/kubernetes/pull/127100, in 1.31.1
func CheckKubelet(ctx context.Context, paths []string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for _, path := range paths {
		if access.CheckProgram(path) != nil {
			continue // Other users can replace it, and dxctl runs with all privileges.
		}
		command := exec.CommandContext(ctx, path, "--version")
		command.WaitDelay = time.Second
		out, _ := command.Output() // With an error, the version is unknown.
		version, _, _ := strings.Cut(strings.TrimSpace(string(out)), "+")
		if version, _, _ = strings.Cut(version, "-"); version == "Kubernetes v1.31.0" {
			err := fmt.Errorf("%s is of Kubernetes 1.31.0 and does not start again after a restart (kubernetes/kubernetes#126965)", path)
			return remedy.With(err, "update it to 1.31.1 or later; do not restart containerd before")
		}
	}
	return nil
}
