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

// testByHand has the real ctr.exe read the flags of dxctl.exe, and runhcs alone
// make what HCS is told.
func testByHand(t *testing.T, n node) {
	first, second := n.gpus[0], n.gpus[1]
	for i, test := range []struct {
		name      string
		selection []string
		request   string
		want      []bed.GPU
	}{
		{"has all GPUs", []string{"--all"}, "all", n.gpus},
		{"has a GPU by index", []string{"--index", "1"}, "1", []bed.GPU{second}},
		{"has a GPU by LUID", []string{"--luid", first.LUID}, first.LUID, []bed.GPU{first}},
		{"has a GPU by location path", []string{"--path", second.Location}, second.Location, []bed.GPU{second}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			status, stdout, stderr := n.Ask(t, "flags", append([]string{"--for", "ctr", "-o", "json"}, test.selection...)...)
			var flags []string
			if err := json.Unmarshal([]byte(stdout), &flags); err != nil || status != 0 {
				t.Fatalf("status %d, %v\n%s%s", status, err, stdout, stderr)
			}
			t.Logf("%q\n%s", flags, stderr)
			hand, shim := fmt.Sprintf("hand-%d", i), fmt.Sprintf("shim-%d", i)
			if err := n.RunImage(t, bed.Runhcs, hand, flags...); err != nil {
				t.Fatalf("ctr run: %v", err)
			}
			n.mustHave(t, hand, test.want...)
			if err := n.RunImage(t, bed.Directx, shim, "--env", "DIRECTX_VISIBLE_DEVICES="+test.request); err != nil {
				t.Fatalf("ctr run: %v", err)
			}
			if got, want := n.Document(t, hand).Neutral(hand), n.Document(t, shim).Neutral(shim); got != want {
				t.Errorf("the HCS document is\n%s\nand with the shim\n%s", got, want)
			}
		})
	}

	t.Run("has its GPU by the flags for the shim", func(t *testing.T) {
		t.Parallel()
		_, stdout, _ := n.Ask(t, "flags", "--index", "1", "--with-shim", "-o", "args")
		flags := strings.Split(strings.TrimSpace(strings.ReplaceAll(stdout, "\r", "")), "\n")
		if i := slices.Index(flags, "--runtime"); i < 0 || flags[i+1] != bed.Directx {
			t.Fatalf("flags %q", flags)
		}
		if err := n.RunImage(t, bed.Directx, "hand-shim", flags[2:]...); err != nil {
			t.Fatalf("ctr run: %v", err)
		}
		n.mustHave(t, "hand-shim", second)
	})
}
