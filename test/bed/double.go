//go:build e2e && linux

package bed

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/directx-nri/directx-nri/internal/testutil"
)

// Double is a running test double of /dev/dxg: program test/dxg/double.
type Double struct {
	testing.TB
	scenario string
	// Root has the double as dev/dxg, which is File.
	Root, File string
}

var buildDouble = sync.OnceValues(func() (string, error) {
	parts, err := FindParts()
	if err != nil {
		return "", err
	}
	program := filepath.Join(RunDir(), "double")
	build := exec.Command("go", "build", "-buildvcs=false", "-o", program)
	build.Dir, build.Env = filepath.Join(parts.Root, "test/dxg/double"), append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the double: %w: %s", err, out)
	}
	return program, nil
})

// StartDouble starts a double with a scenario that its program describes, and ends it
// with the test.
func StartDouble(t testing.TB, scenario any) *Double {
	t.Helper()
	program, err := buildDouble()
	testutil.NoError(t, err)
	dir := t.TempDir()
	d := &Double{TB: t, scenario: filepath.Join(dir, "scenario.json"), Root: dir, File: filepath.Join(dir, "dev/dxg")}
	d.Set(scenario)
	testutil.NoError(t, os.Mkdir(filepath.Dir(d.File), 0o755), os.WriteFile(d.File, nil, 0o666))
	cmd := exec.Command(program, d.scenario, d.File)
	cmd.Stderr = os.Stderr
	testutil.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // It may have ended.
		if err := cmd.Wait(); err != nil {
			t.Errorf("the double: %v", err)
		}
	})
	Eventually(t, 10*time.Second, "the double is mounted", func() error {
		_, err := d.Open()
		return err
	})
	return d
}

// Set changes the scenario.
func (d *Double) Set(scenario any) {
	d.Helper()
	text, err := json.Marshal(scenario)
	testutil.NoError(d, err, os.WriteFile(d.scenario+".next", text, 0o644), os.Rename(d.scenario+".next", d.scenario))
}

// Open returns the number of open files.
func (d *Double) Open() (string, error) {
	buffer := make([]byte, 100)
	n, err := unix.Getxattr(d.File, "user.open", buffer)
	return string(buffer[:max(n, 0)]), err
}

// OwnDev gives the run a /dev of its own: a copy of the machine's, without /dev/dxg.
func OwnDev() error {
	const script = `set -e; dev="$0/dev"; mkdir "$dev"; mount -t tmpfs -o mode=755 dev "$dev"; cp -ax /dev/. "$dev"
mount --rbind /dev/pts "$dev/pts"; rm -f "$dev/dxg"; mount --rbind "$dev" /dev`
	if out, err := exec.Command("sh", "-c", script, RunDir()).CombinedOutput(); err != nil {
		return fmt.Errorf("make /dev: %w: %s", err, out)
	}
	return nil
}
