package errlog

import (
	"errors"
	"fmt"
	"testing"
)

func TestText(t *testing.T) {
	t.Parallel()
	plain, full, locked := errors.New("plain"), WithRemedy(errors.New("full"), "delete"), WithRemedy(errors.New("locked"), "unlock")
	for err, want := range map[error][3]string{ // its own text, the remedy, and both
		plain: {"plain", "", "plain"},
		full:  {"full", "delete", "full; delete"},
		WithRemedy(fmt.Errorf("write: %w", full), "buy"):              {"write: full", "delete", "write: full; delete"}, // the innermost
		fmt.Errorf("%w, and x", full):                                 {"full, and x", "delete", "full, and x; delete"},
		fmt.Errorf("x: %w", errors.Join(plain, full, locked)):         {"x: plain\nfull\nlocked", "delete", "x: plain full locked; delete"},
		WithRemedy(errors.Join(plain, fmt.Errorf("%w", full)), "buy"): {"plain\nfull", "delete", "plain full; delete"},
	} {
		if got := [3]string{err.Error(), RemedyOf(err), Text(err)}; got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
