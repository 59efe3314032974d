// Package realshim finds the real shim, which the runtime shim runs to start containers.
package realshim

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/directx-nri/directx-nri/internal/access"
	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/winpath"
	"github.com/directx-nri/directx-nri/shim/shimfile"
)

// Default returns the file name of the real shim unless another one is configured.
func Default() string {
	if runtime.GOOS == "windows" {
		return "containerd-shim-runhcs-v1.exe"
	}
	return "containerd-shim-runc-v2"
}

// k3sBin has the programs of k3s. It is on containerd's PATH, and not on a shell's.
// https://github.com/k3s-io/k3s/blob/main/cmd/k3s/main.go
const k3sBin = "/var/lib/rancher/k3s/data/current/bin"

// Find returns the path of the real shim for the shim at the path self.
// name is an absolute path, or the name of a file that is looked up beside self, on PATH and
// in the directory of k3s; "" is the default. It never returns self.
func Find(self, name string) (string, error) { return find(self, name, k3sBin) }

func find(self, name, k3sBin string) (string, error) {
	name = cmp.Or(name, Default())
	if filepath.IsAbs(name) {
		return name, checkCandidate(self, name)
	}
	beside := filepath.Join(filepath.Dir(self), name)
	if checkCandidate(self, beside) == nil {
		return beside, nil
	}
	path, err := exec.LookPath(name)
	if err != nil {
		path, err = exec.LookPath(filepath.Join(k3sBin, name))
	}
	if err != nil {
		return "", fmt.Errorf("real shim not found: %s is neither in %s nor on PATH", name, filepath.Dir(self))
	}
	return path, checkCandidate(self, path)
}

// CheckChanged checks name, the real shim of a new configuration, if the policy in stateDir has
// another one: the program must exist and use the node's kernel, and only administrators may be able to
// replace it. In a pod, it is found only in a directory of the node that the pod has mounted.
func CheckChanged(stateDir, name string) error {
	last, _ := policy.ReadRealShim(stateDir)
	if last == "" { // Its file may be damaged.
		p, _ := policy.Read(stateDir)
		last = p.Shim.RealShim
	}
	if cmp.Or(name, Default()) == cmp.Or(last, Default()) {
		return nil
	}
	path, err := Find(filepath.Join(paths.Default().ShimDir, shimfile.FileName()), name)
	if err == nil {
		err = access.CheckProgram(path)
	}
	if err != nil {
		return errlog.WithRemedy(err, "install it first, and in a pod mount its directory at the same path")
	}
	return CheckKernel(name)
}

// HasOwnKernel reports whether the containers of a shim, or of a program in place of runc, are known to
// have their own kernel, in which the GPUs of the node do not work. Others may be wrappers of runc.
func HasOwnKernel(program string) bool {
	known := strings.Fields("crun-vm firecracker hyperlight kata krun kuasar-vmm nerdbox quark runcvm runnc runq runsc runu runx urunc") // parts of names
	return slices.ContainsFunc(known, func(name string) bool { return strings.Contains(winpath.Base(program), name) })
}

// ErrOwnKernel means that containers that get GPUs from the runtime shim would start without them.
var ErrOwnKernel = errors.New("the containers of the real shim have their own kernel")

// CheckKernel returns an error that matches [ErrOwnKernel] if [HasOwnKernel] is true for the real shim.
func CheckKernel(realShim string) error {
	if !HasOwnKernel(realShim) {
		return nil
	}
	return errlog.WithRemedy(fmt.Errorf("%w: %s", ErrOwnKernel, realShim), "set shim.realShim in the configuration to a shim that runs runc, or remove it")
}

// checkCandidate returns an error if no program at path can be the real shim. self cannot, because
// it would run itself in an endless loop.
func checkCandidate(self, path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("real shim not found: %w", err)
	}
	if !info.Mode().IsRegular() || runtime.GOOS != "windows" && info.Mode().Perm()&0o111 == 0 {
		return fmt.Errorf("real shim not found: %s is not an executable file", path)
	}
	if own, err := os.Stat(self); err == nil && os.SameFile(info, own) {
		return fmt.Errorf("real shim not found: %s is the runtime shim of directx-nri", path)
	}
	return nil
}
