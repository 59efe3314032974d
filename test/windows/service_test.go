//go:build e2e && windows

package windows

import (
	"net/http"
	"os"
	"testing"

	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/test/windows/bed"
)

// TestService installs directx-advertiser with dxctl as a service of Wine's service
// manager. That does not restart a service, nor notice that one was killed.
func TestService(t *testing.T) {
	t.Parallel()
	dir := t.TempDir() + `\`
	if _, err := os.Stat(`C:\ProgramData\directx-nri`); err == nil && !machine.Doubled {
		t.Skip("the product is installed on this machine")
	}
	address := testutil.FreeAddress(t)
	run := func(status int, program string, args ...string) string {
		t.Helper()
		stdout, _ := machine.Exec(t, status, machine.Command(t.Context(), program, args...))
		return stdout
	}
	dxctl := func(status int, args ...string) string {
		t.Helper()
		return run(status, machine.Executable(bed.Dxctl), append([]string{"service"}, args...)...)
	}
	answers := func() bool { return testutil.Answers(t, "http://"+address+"/healthz", http.StatusOK) == "" }
	install := func() {
		t.Helper()
		dxctl(0, "install", "--", "--state-dir", dir+"state", "--kubelet-dir", dir+"plugins", "--metrics-address", address)
		testutil.Eventually(t, "the daemon answers", answers)
	}
	ends := func() {
		t.Helper()
		testutil.Eventually(t, "the daemon has ended", func() bool { return !answers() })
	}
	uninstall := func(want string) {
		t.Helper()
		if out := dxctl(0, "uninstall"); out != want {
			t.Errorf("it prints %q, want %q", out, want)
		}
	}
	const none = "the service directx-advertiser is not installed\n"
	uninstall(none)
	install()
	run(0, "net", "stop", "directx-advertiser")
	ends()
	install()

	// A service of the same name that runs another program is left alone.
	uninstall("removed the service directx-advertiser\n")
	ends()
	run(0, "sc", "create", "directx-advertiser", "binPath=", `C:\windows\system32\nssm.exe`)
	dxctl(1, "install")
	dxctl(1, "uninstall")
	run(0, "sc", "delete", "directx-advertiser")
	uninstall(none)
	if _, err := os.Stat(dir + "state"); err != nil {
		t.Errorf("the daemon did not write its state: %v", err)
	}
}
