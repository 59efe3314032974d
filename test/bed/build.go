//go:build e2e && linux

package bed

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// BuildImage builds the programs of a version for a platform, such as linux-amd64, into bin/PLATFORM of dir,
// with further flags, and an archive of their image into dir. It returns the archive's path. root is the
// repository. The image for Windows has no base image.
func BuildImage(ctx context.Context, root, dir, version, platform string, flags ...string) (string, error) {
	programs := filepath.Join(dir, "bin", platform)
	if err := os.MkdirAll(programs, 0o755); err != nil {
		return "", err
	}
	system, architecture, _ := strings.Cut(platform, "-")
	args := slices.Concat([]string{"build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w -X main.version=" + version},
		flags, []string{"-o", programs + "/", "./cmd/..."})
	if err := runGo(ctx, root, []string{"GOOS=" + system, "GOARCH=" + architecture, "CGO_ENABLED=0"}, args...); err != nil {
		return "", err
	}
	args = []string{"run", ".", "-version", version, "-bin", filepath.Dir(programs), "-out", dir, "-platforms", platform, "images"}
	err := runGo(ctx, filepath.Join(root, "tools/release"), []string{"WINDOWS_BASE_IMAGE=scratch"}, args...)
	return filepath.Join(dir, "directx-nri-image-"+version+"-"+platform+".tar"), err
}

func runGo(ctx context.Context, dir string, env []string, args ...string) error {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}
