//go:build linux

package shim

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"directx-nri/internal/starts"
)

// events takes what the starts of b left for the advertiser.
func (b *bed) events() (refused []string) {
	b.t.Helper()
	reader := starts.NewReader(b.path("state"))
	for range 2 {
		events, skipped, err := reader.Take()
		if err != nil || skipped != 0 {
			b.t.Fatal(skipped, err)
		}
		for _, e := range events {
			if e.Took <= 0 {
				b.t.Errorf("a start took %s", e.Took)
			}
			refused = append(refused, e.Refused)
		}
	}
	return refused
}

func TestStartsAreTold(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.started(b.start(standalone()))
	if got := b.events(); len(got) != 0 {
		t.Errorf("a start that asks for nothing left %q", got)
	}
	b.started(b.start(standalone("DIRECTX_VISIBLE_DEVICES=all")))
	b.refused(b.start(standalone("DIRECTX_VISIBLE_DEVICES=7")))
	b.refused(b.start(specOf(podAnnotations("container", "u1"), "DIRECTX_ALLOCATION_DISPLAY=x")))
	b.refused(b.start("{"))
	if diff := cmp.Diff([]string{"", "request", "wrong_variable", "other"}, b.events()); diff != "" {
		t.Error(diff)
	}
}

func TestNoStartFailsForWhatItTells(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	if err := os.Mkdir(b.path("state/starts.jsonl"), 0o700); err != nil {
		t.Fatal(err)
	}
	b.started(b.start(standalone("DIRECTX_VISIBLE_DEVICES=all")))
}

// TestOneRefusalIsOneLine looks at the shim's own log.
func TestOneRefusalIsOneLine(t *testing.T) {
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
			for _, text := range append(test.says, "level=error", `msg="container refused"`, "error=") {
				if !strings.Contains(lines[0], text) {
					t.Errorf("%q does not say %s", lines[0], text)
				}
			}
		})
	}
}

func TestAMistakeIsTold(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.shim = b.program("bin/" + brokenName)
	b.refused(b.start(standalone("DIRECTX_VISIBLE_DEVICES=all")), "an error in directx-nri")
	if diff := cmp.Diff([]string{"other"}, b.events()); diff != "" {
		t.Error(diff)
	}
	if log := b.read("state/shim.log"); strings.Count(log, "container refused") != 1 || !strings.Contains(log, "stack=") {
		t.Error(log)
	}
}
