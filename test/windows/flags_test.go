//go:build e2e && linux

package windows

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"directx-nri/test/windows/bed"
)

// testFlags runs ctr.exe with the flags of 'dxctl.exe flags', with runhcs alone.
func (n node) testFlags(t *testing.T) {
	first, second := n.gpus[0], n.gpus[1]
	for i, test := range []struct {
		name      string
		selection []string
		request   string
		want      []bed.GPU
	}{
		{"all GPUs", []string{"--all"}, "all", n.gpus},
		{"a GPU by index", []string{"--index", "1"}, "1", []bed.GPU{second}},
		{"a GPU by LUID", []string{"--luid", first.LUID}, first.LUID, []bed.GPU{first}},
		{"a GPU by location path", []string{"--path", second.Location}, second.Location, []bed.GPU{second}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			status, stdout, stderr := n.Dxctl(t, append([]string{"flags", "--for", "ctr", "-o", "json"}, test.selection...)...)
			var flags []string
			if err := json.Unmarshal([]byte(stdout), &flags); err != nil || status != 0 {
				t.Fatalf("status %d, %v\n%s%s", status, err, stdout, stderr)
			}
			byFlags, byShim := fmt.Sprintf("flags-%d", i), fmt.Sprintf("shim-%d", i)
			if err := n.RunImage(t, bed.Runhcs, byFlags, flags...); err != nil {
				t.Fatalf("ctr run: %v", err)
			}
			n.mustHave(t, byFlags, test.want...)
			if err := n.RunImage(t, bed.Directx, byShim, "--env", "DIRECTX_VISIBLE_DEVICES="+test.request); err != nil {
				t.Fatalf("ctr run: %v", err)
			}
			if got, want := n.Document(t, byFlags).Neutral(byFlags), n.Document(t, byShim).Neutral(byShim); got != want {
				t.Errorf("the HCS document is\n%s\nand with the shim\n%s", got, want)
			}
		})
	}

	t.Run("flags for the shim", func(t *testing.T) {
		t.Parallel()
		_, stdout, _ := n.Dxctl(t, "flags", "--index", "1", "--with-shim", "-o", "args")
		flags := strings.Split(strings.TrimSpace(strings.ReplaceAll(stdout, "\r", "")), "\n")
		if i := slices.Index(flags, "--runtime"); i < 0 || flags[i+1] != bed.Directx {
			t.Fatalf("flags %q", flags)
		}
		if err := n.RunImage(t, bed.Directx, "flags-shim", flags[2:]...); err != nil {
			t.Fatalf("ctr run: %v", err)
		}
		n.mustHave(t, "flags-shim", second)
	})
}
