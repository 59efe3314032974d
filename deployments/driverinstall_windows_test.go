package deployments

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/windows"
)

// TestDriverInstallDirectory checks that only SYSTEM and Administrators have access to the directory into which the
// example that installs a driver downloads it.
func TestDriverInstallDirectory(t *testing.T) {
	t.Parallel()
	script, err := os.ReadFile(filepath.Join("examples", "driver-install", "install.ps1"))
	if err != nil {
		t.Fatal(err)
	}
	function := regexp.MustCompile(`(?s)function New-PrivateDirectory.*?\n}\r?\n`).Find(script)
	dir := filepath.Join(t.TempDir(), "base", "work")
	command := exec.CommandContext(t.Context(), "powershell.exe", "-NoProfile", "-NonInteractive", "-Command",
		string(function)+"New-PrivateDirectory -Path '"+dir+"'")
	command.Env = slices.DeleteFunc(os.Environ(), func(variable string) bool { // PowerShell 7 sets it for its own modules.
		return strings.HasPrefix(strings.ToUpper(variable), "PSMODULEPATH=")
	})
	if out, err := command.CombinedOutput(); err != nil || len(out) > 0 {
		t.Fatalf("%v: %s", err, out)
	}
	want := regexp.MustCompile(`^D:P(AI)?\(A;OICI;FA;;;SY\)\(A;OICI;FA;;;BA\)$`)
	for _, path := range []string{filepath.Dir(dir), dir} {
		descriptor, err := windows.GetNamedSecurityInfo(path, windows.SE_FILE_OBJECT, windows.DACL_SECURITY_INFORMATION)
		if err != nil || !want.MatchString(descriptor.String()) {
			t.Errorf("%s has the access control list %v, %v", path, descriptor, err)
		}
	}
}
