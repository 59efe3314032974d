//go:build e2e && linux

package windows

import (
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"directx-nri/internal/testutil"
	"directx-nri/test/windows/bed"
)

// TestService installs directx-advertiser with dxctl as a service of Wine's service
// manager, which has no recovery actions.
func TestService(t *testing.T) {
	t.Parallel()
	if skip != "" {
		t.Skip(skip)
	}
	const dir = `C:\service\`
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-buildvcs=false", "-o", wine.Linux(dir)+string(filepath.Separator), "../../cmd/dxctl", "../../cmd/directx-advertiser")
	build.Env = append(os.Environ(), "GOOS=windows", "GOARCH=amd64", "CGO_ENABLED=0")
	if err := os.MkdirAll(wine.Linux(dir), 0o700); err != nil {
		t.Fatal(err)
	}
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	address := testutil.FreeAddress(t)
	run := func(want int, program string, args ...string) string {
		t.Helper()
		status, stdout, stderr := wine.Finish(t, wine.Command(t.Context(), program, args...))
		if status != want {
			t.Errorf("%s %q: status %d, want %d\n%s%s", program, args, status, want, stdout, stderr)
		}
		return stdout
	}
	dxctl := func(want int, args ...string) string {
		t.Helper()
		return run(want, dir+"dxctl.exe", append([]string{"service"}, args...)...)
	}
	// install retries: Wine's service manager notices the end of a process late.
	install := func() {
		t.Helper()
		bed.Eventually(t, "the daemon is installed and healthy", func() error {
			args := []string{"service", "install", "--", "--state-dir", dir + "state", "--kubelet-dir", dir + "plugins", "--metrics-address", address}
			if status, _, stderr := wine.Finish(t, wine.Command(t.Context(), dir+"dxctl.exe", args...)); status != 0 {
				return errors.New(stderr)
			}
			return nil
		})
		testutil.Eventually(t, "the daemon answers", func() bool { return testutil.Answers(t, "http://"+address+"/healthz", http.StatusOK) == "" })
	}
	state := func(want string) {
		t.Helper()
		status := 1
		if want == "running" {
			status = 0
		}
		if out := dxctl(status, "status"); out != "directx-advertiser\t"+want+"\n" {
			t.Errorf("status %q, want %s", out, want)
		}
	}
	// process returns the daemon's process on this system, 0 if there is none.
	process := func() int {
		t.Helper()
		files, err := filepath.Glob("/proc/[0-9]*/cmdline")
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if data, err := os.ReadFile(file); err == nil && strings.Contains(string(data), "directx-advertiser.exe\x00--run-as-service") && strings.Contains(string(data), address) {
				pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
				if err != nil {
					t.Fatal(err)
				}
				return pid
			}
		}
		return 0
	}

	state("not installed")
	install()
	state("running")
	run(0, "net", "stop", "directx-advertiser")
	state("stopped")
	install()
	state("running")

	// A new installation replaces a service that has crashed.
	crashed := process()
	if crashed == 0 {
		t.Fatal("the daemon does not run")
	}
	if err := syscall.Kill(crashed, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	install()
	state("running")

	// A service of the same name that runs another program is left alone.
	dxctl(0, "uninstall")
	state("not installed")
	if pid := process(); pid != 0 {
		t.Errorf("process %d still runs", pid)
	}
	run(0, "sc", "create", "directx-advertiser", "binPath=", `C:\windows\system32\nssm.exe`)
	dxctl(1, "install")
	dxctl(1, "uninstall")
	run(0, "sc", "delete", "directx-advertiser")
	state("not installed")
	if _, err := os.Stat(wine.Linux(dir + "state")); errors.Is(err, os.ErrNotExist) {
		t.Error("the daemon did not write its state")
	}
}
