package decision

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"testing/synctest"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/access"
	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/ocispec/gpuedits"
)

func TestReasons(t *testing.T) {
	t.Parallel()
	var hung error
	synctest.Test(t, func(t *testing.T) {
		_, hung = discovery.NewDriverSource(func(ctx context.Context) ([]discovery.Device, error) { <-ctx.Done(); return nil, ctx.Err() }).Devices(t.Context())
	})
	for want, errs := range map[Reason][]error{
		ReasonNoRecord:   {allocation.ErrNotFound, allocation.ErrMalformedID, errNoAllocation},
		ReasonHeld:       {allocation.ErrHeld},
		ReasonUnreadable: {allocation.ErrUnreadable, access.ErrUntrusted},
		ReasonForged:     {errForged},
		ReasonDeviceGone: {discovery.ErrGone, discovery.ErrUnusable, gpuedits.ErrNotAssignable},
		ReasonHyperV:     {errHyperV},
		ReasonRequest:    {errNoSuchGPU},
		ReasonSlow:       {context.DeadlineExceeded, os.ErrDeadlineExceeded, hung},
		ReasonOther:      {errors.New("unknown"), fmt.Errorf("%w: a panic", errlog.ErrInternal)},
		ReasonConfig:     {WithReason(ReasonConfig, allocation.ErrHeld)},
	} {
		for _, err := range errs {
			got, err := Container{Name: "main", Pod: &Pod{}}.Refuse(fmt.Errorf("%w: %w", discovery.ErrUnknown, err))
			if got != want {
				t.Errorf("%v: %q, want %q", err, got, want)
			}
		}
	}
}

// TestRemedies: a refusal has one remedy, and that of the error takes precedence over that of its reason.
func TestRemedies(t *testing.T) {
	t.Parallel()
	errDenied := errors.New("denied")
	for want, err := range map[string]error{
		"A: " + errHyperV.Error() + "; " + refusalOf(errHyperV).remedy: fmt.Errorf("A: %w", errHyperV),
		"denied; " + errlog.RunDoctor:                                  errDenied,
		"denied; do this":                                              WithReason(ReasonConfig, errlog.WithRemedy(errlog.WithRemedy(errDenied, "do this"), "or that")),
	} {
		want = "directx-nri: container \"c1\" is not started: " + want
		if _, got := (Container{ID: "c1"}).Refuse(err); errlog.Text(got) != want || !errors.Is(got, err) {
			t.Errorf("%q, want %q", errlog.Text(got), want)
		}
	}
}
