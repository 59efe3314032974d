package diversion

import (
	"errors"
	"slices"
	"testing"
)

// TestPlan has the table of the design: each state, and what is done in it.
func TestPlan(t *testing.T) {
	t.Parallel()
	for s, want := range map[state]struct {
		check           error
		install, remove []step
		refused         error // by install, and by remove unless nothing is there
	}{
		{absent, absent, false}:   {check: ErrNoShim, refused: ErrNoShim},
		{absent, foreign, false}:  {check: ErrInterrupted, install: []step{place}, remove: []step{recreate, discard}},
		{absent, ours, false}:     {check: ErrBroken, refused: ErrBroken},
		{foreign, absent, false}:  {check: ErrNotDiverted, install: []step{divert}},
		{foreign, foreign, false}: {check: ErrOverwritten, install: []step{setAside, divert}, remove: []step{discard}},
		{foreign, foreign, true}:  {check: ErrNotDiverted, install: []step{setAside, divert}, remove: []step{discard}},
		{foreign, ours, false}:    {check: ErrBroken, refused: ErrBroken},
		{ours, absent, false}:     {check: ErrBroken, refused: ErrBroken},
		{ours, foreign, false}:    {check: nil, install: []step{update}, remove: []step{restore, discard}},
		{ours, ours, false}:       {check: ErrBroken, refused: ErrBroken},
	} {
		if err := check(s); !errors.Is(err, want.check) {
			t.Errorf("%v: check: %v, want %v", s, err, want.check)
		}
		if steps, err := planInstall(s); !slices.Equal(steps, want.install) || !errors.Is(err, want.refused) {
			t.Errorf("%v: install: %q, %v", s, steps, err)
		}
		refused := want.refused
		if errors.Is(refused, ErrNoShim) {
			refused = nil
		}
		if steps, err := planRemove(s); !slices.Equal(steps, want.remove) || !errors.Is(err, refused) {
			t.Errorf("%v: remove: %q, %v", s, steps, err)
		}
	}
}
