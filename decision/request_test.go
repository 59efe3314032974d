package decision

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/access"
	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/ocispec/gpuedits"
)

func TestPresentedAllocations(t *testing.T) {
	t.Parallel()
	id1, id2 := strings.Repeat("1", 32), strings.Repeat("2", 32)
	annotations := map[string]string{
		"directx.microsoft.com/allocation.b": id2, "directx.microsoft.com/allocation.a": id1, "directx.microsoft.com/allocation.c": "x",
		"directx.microsoft.com/allocation": id1, "directx.microsoft.com/allocations.a": id1, "directx.microsoft.com/extra-mounts": "a",
	}
	want := []presented{
		{"directx.microsoft.com/allocation.a", allocation.ID(id1), nil}, {"directx.microsoft.com/allocation.b", allocation.ID(id2), nil},
		{"directx.microsoft.com/allocation.c", "", allocation.ErrMalformedID},
	}
	if diff := cmp.Diff(want, presentedAllocations(annotations), cmp.AllowUnexported(presented{}), cmpopts.EquateErrors()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestReasonOf(t *testing.T) {
	t.Parallel()
	var hung error
	synctest.Test(t, func(t *testing.T) {
		_, hung = discovery.NewDriverSource(nil, func(ctx context.Context) ([]discovery.Device, error) { <-ctx.Done(); return nil, ctx.Err() }).Devices(t.Context())
	})
	for want, errs := range map[Reason][]error{
		ReasonNoRecord:   {allocation.ErrNotFound, allocation.ErrMalformedID, errNoAllocation},
		ReasonHeld:       {allocation.ErrHeld},
		ReasonUnreadable: {allocation.ErrUnreadable, access.ErrNotPrivate},
		ReasonForged:     {errForged},
		ReasonDeviceGone: {discovery.ErrGone, discovery.ErrUnusable, gpuedits.ErrNotAssignable},
		ReasonHyperV:     {errHyperV},
		ReasonRequest:    {errNoSuchGPU, errBadRequest},
		ReasonSlow:       {context.DeadlineExceeded, hung},
		ReasonOther:      {errors.New("unknown"), fmt.Errorf("%w: a panic", errlog.ErrInternal)},
		ReasonConfig:     {WithReason(ReasonConfig, allocation.ErrHeld)},
	} {
		for _, err := range errs {
			for _, err := range []error{err, fmt.Errorf("%w: %w", discovery.ErrUnknown, err), errlog.WithRemedy(err, "do this")} {
				err = Container{Name: "main", Pod: &Pod{}}.RefusalError(fmt.Errorf("X: %w", err))
				if got := ReasonOf(err); got != want {
					t.Errorf("%v: %q, want %q", err, got, want)
				}
			}
		}
	}
}

// TestRemedies: a refusal has one remedy, and that of the error takes precedence over the default.
func TestRemedies(t *testing.T) {
	t.Parallel()
	errDenied := errors.New("denied")
	specific := errlog.WithRemedy(errDenied, "do this")
	for want, err := range map[string]error{
		"A: it is isolated by Hyper-V, and GPUs are for process-isolated containers only; use a runtime class with process isolation": fmt.Errorf("A: %w", errHyperV),
		"denied; " + errlog.RunDoctor:                        errDenied,
		"config: denied; " + errlog.RunDoctor:                WithReason(ReasonConfig, fmt.Errorf("config: %w", errDenied)),
		"denied; do this":                                    WithReason(ReasonConfig, errlog.WithRemedy(specific, "or that")),
		"the GPUs of this node are unknown: denied; do this": fmt.Errorf("%w: %w", discovery.ErrUnknown, specific),
		"directory is not private; do this":                  errlog.WithRemedy(access.ErrNotPrivate, "do this"),
		"no GPU of this node matches 7; " + errlog.RunDoctor: fmt.Errorf("%w 7", errNoSuchGPU),
		"the GPUs of this node are unknown: internal error in directx-nri, please report it: nil pointer; " + errlog.RunDoctor: fmt.Errorf(
			"%w: %w: nil pointer", discovery.ErrUnknown, errlog.ErrInternal),
	} {
		want = "directx-nri: container \"c1\" is not started: " + want
		if got := (Container{ID: "c1"}).RefusalError(err); errlog.Text(got) != want || !errors.Is(got, err) || ReasonOf(got) != ReasonOf(err) {
			t.Errorf("%q, reason %q, want %q", errlog.Text(got), ReasonOf(got), want)
		}
	}
}
