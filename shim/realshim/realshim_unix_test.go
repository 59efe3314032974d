//go:build unix

package realshim

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/shim/shimfile"
)

// TestCheck: only a change is checked, and it must not stop all containers. The last name is
// known while one of its two files is intact.
func TestCheckChanged(t *testing.T) {
	t.Parallel()
	stateDir, dir := t.TempDir(), t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	configure := func(realShim string) {
		p := policy.Default()
		p.Shim.RealShim = realShim
		testutil.NoError(t, os.Chmod(stateDir, 0o700), policy.Write(stateDir, p))
	}
	last := path("gone")
	configure(last)
	testutil.WriteFile(t, path("file"), "", 0o600)
	testutil.WriteFile(t, path("good/kata"), "", 0o700)
	for name, mode := range map[string]os.FileMode{"good": 0o755, "open": 0o777} {
		testutil.WriteFile(t, path(name+"/shim"), "", 0o700)
		testutil.NoError(t, os.Chmod(path(name), mode))
	}
	for name, want := range map[string]string{
		last: "", path("good/shim"): "", path("gone2"): "no such file", path("file"): "is not an executable file",
		path("good"): "is not an executable file", path("good/kata"): "good/kata; set shim.realShim", path("open/shim"): "others can write to it", "no-such-shim": "nor on PATH",
	} {
		testutil.CheckError(t, name, CheckChanged(stateDir, name), want)
	}
	for _, file := range []string{policy.Path(stateDir), policy.RealShimFile(stateDir)} {
		configure(last)
		testutil.NoError(t, os.Truncate(file, 0))
		if err := CheckChanged(stateDir, last); err != nil {
			t.Errorf("%s is damaged: %v", file, err)
		}
	}
	configure("")
	testutil.NoError(t, CheckChanged(stateDir, Default())) // by its name
}

// TestRealShimOfK3s: k3s's shim is not on the PATH of a shell, where dxctl runs.
func TestRealShimOfK3s(t *testing.T) {
	dir := t.TempDir()
	self, bin := filepath.Join(dir, "lib", shimfile.BaseName), filepath.Join(dir, "bin")
	for _, program := range []string{self, filepath.Join(bin, shimfile.BaseName), filepath.Join(bin, "real")} {
		testutil.WriteFile(t, program, "", 0o700)
	}
	t.Setenv("PATH", filepath.Dir(self))
	if path, err := find(self, "real", bin); err != nil || path != filepath.Join(bin, "real") {
		t.Errorf("%s, %v", path, err)
	}
	if path, err := find(self, "real", dir); err == nil {
		t.Errorf("it found %s", path)
	}
	t.Setenv("PATH", bin)
	_, err := find(filepath.Join(bin, shimfile.BaseName), shimfile.BaseName, dir)
	testutil.CheckError(t, "it finds itself", err, "runtime shim of directx-nri")
}

func TestHasOwnKernel(t *testing.T) {
	t.Parallel()
	const others = "runc crun youki nvidia-container-runtime sysbox-runc /usr/kata/bin/runc containerd-shim-runc-v2 containerd-shim-runhcs-v1.exe containerd-shim-spin-v2"
	const sandboxed = " kata-runtime containerd-shim-kata-qemu-v2 /x/runsc krun crun-vm urunc runnc runcvm-runtime runq runu runx aws-firecracker hyperlight kuasar-vmm nerdbox quark"
	if got := strings.Join(slices.DeleteFunc(strings.Fields(others+sandboxed), HasOwnKernel), " "); got != others {
		t.Error(got)
	}
}
