package shim

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/testutil"
)

// TestKilledAtEachSystemCall kills the shim before each of its system calls: the bundle
// is untouched or complete then, and the next start of the container works.
func TestKilledAtEachSystemCall(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.shim = buildShim(t)
	b.configure(func(p *policy.Policy) { p.Shim.Runtime = "/bin/true" })
	const noToken = "TOKEN"
	var complete string // with noToken for the token
	// Calls of Go's scheduler come and go: the last run that is killed is not the longest.
	for n, unkilled := 0, 0; unkilled < 20; n++ {
		token := b.allocate()
		before := interlocked(podAnnotations("container", "u1"), "DIRECTX_ALLOCATION_DISPLAY="+token)
		b.write("bundle/config.json", before)
		if n == 0 {
			b.killAt(-1)
			complete = strings.ReplaceAll(b.read("bundle/config.json"), token, noToken)
			b.hasGPU()
			continue
		}
		if !b.killAt(n) {
			unkilled++
		}
		after := strings.ReplaceAll(complete, noToken, token)
		if got := b.read("bundle/config.json"); got != before && got != after {
			t.Fatalf("killed at system call %d: config.json is %s", n, got)
		}
		if r := b.run("-namespace", "default", "-id", "c1", "start"); r.status != 0 || r.stderr != "" {
			t.Fatalf("the start after a kill at system call %d: status %d, errors %q", n, r.status, r.stderr)
		}
		files, err := os.ReadDir(b.path("bundle"))
		if got := b.read("bundle/config.json"); got != after || err != nil || len(files) != 1 {
			t.Fatalf("the start after a kill at system call %d left %v with %s, %v", n, files, got, err)
		}
	}
}

// buildShim builds the real program, which has fewer system calls than that of tests.
func buildShim(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), ourName)
	if out, err := exec.Command("go", "build", "-o", program, "github.com/directx-nri/directx-nri/cmd/containerd-shim-directx-v1").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return program
}

// killAt runs a start and kills it before its n-th system call. It returns false if the
// real shim was run before that.
func (b *bed) killAt(n int) (killed bool) {
	b.t.Helper()
	command := exec.Command(b.shim, "-namespace", "default", "-id", "c1", "start")
	command.Dir = b.path("bundle")
	command.Env = append(os.Environ(), paths.StateDirVariable+"="+b.path("state"))
	if _, err := testutil.Trace(command, func(call int, _ uint64) bool {
		killed = call == n
		return killed
	}); err != nil {
		b.t.Fatal(err)
	}
	return killed
}
