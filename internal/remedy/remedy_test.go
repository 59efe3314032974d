package remedy

import (
	"errors"
	"fmt"
	"testing"
)

func TestText(t *testing.T) {
	t.Parallel()
	plain, full, locked := errors.New("plain"), With(errors.New("full"), "delete"), With(errors.New("locked"), "unlock")
	for name, test := range map[string]struct {
		err                error
		text, remedy, want string
	}{
		"nil":           {nil, "", "", ""},
		"none":          {plain, "plain", "", "plain"},
		"own":           {full, "full", "delete", "full; delete"},
		"innermost":     {With(fmt.Errorf("write: %w", full), "buy"), "write: full", "delete", "write: full; delete"},
		"text after it": {fmt.Errorf("%w, and x", full), "full, and x", "delete", "full, and x; delete"},
		"two causes":    {fmt.Errorf("%w: %w: %w", locked, full, full), "locked: full: full", "unlock; delete", "locked: full: full; unlock; delete"},
		"joined":        {fmt.Errorf("x: %w", errors.Join(plain, full, locked)), "x: plain\nfull\nlocked", "delete; unlock", "x: plain\nfull\nlocked; delete; unlock"},
		"one has it":    {With(errors.Join(plain, full), "buy"), "plain\nfull", "delete", "plain\nfull; delete"},
	} {
		if test.err != nil && test.err.Error() != test.text {
			t.Errorf("%s: Error() is %q, want %q", name, test.err, test.text)
		}
		if got := Of(test.err); got != test.remedy {
			t.Errorf("%s: Of is %q, want %q", name, got, test.remedy)
		}
		if got := Text(test.err); got != test.want {
			t.Errorf("%s: Text is %q, want %q", name, got, test.want)
		}
	}
}
