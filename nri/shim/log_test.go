//go:build linux

package shim

import (
	"strings"
	"testing"
)

func TestRefusalIsLoggedInOneLine(t *testing.T) {
	t.Parallel()
	pod := podAnnotations("container", "u1")
	for name, test := range map[string]struct {
		spec string
		says []string
	}{
		"standalone":     {standalone("DIRECTX_VISIBLE_DEVICES=7"), []string{"container=c1", "reason=request"}},
		"pod":            {specOf(pod, "DIRECTX_ALLOCATION_DISPLAY=x"), []string{"container=main", "pod=default/web", "reason=wrong_variable"}},
		"no config.json": {"{", []string{"container=c1", "reason=other"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBed(t)
			b.refused(b.start(test.spec))
			lines := strings.Split(strings.TrimSpace(b.read("state/shim.log")), "\n")
			if len(lines) != 1 {
				t.Fatalf("%d lines: %q", len(lines), lines)
			}
			for _, text := range append(test.says, "level=error", `msg="Container refused"`, "error=") {
				if !strings.Contains(lines[0], text) {
					t.Errorf("%q does not say %s", lines[0], text)
				}
			}
		})
	}
}

func TestPanicIsLogged(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.shim = b.program("bin/" + brokenName)
	b.refused(b.start(standalone("DIRECTX_VISIBLE_DEVICES=all")), "internal error in directx-nri")
	if log := b.read("state/shim.log"); strings.Count(log, "Container refused") != 1 || !strings.Contains(log, "stack=") || !strings.Contains(log, "panicking") {
		t.Error(log)
	}
}
