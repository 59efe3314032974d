package decision

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/durable"
	"github.com/directx-nri/directx-nri/ocispec"
)

func TestReasonOf(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		err  error
		want Reason
	}{
		{nil, ""},
		{allocation.ErrNotFound, ReasonNoRecord},
		{allocation.ErrHeld, ReasonHeld},
		{allocation.ErrUnreadable, ReasonUnreadable},
		{durable.ErrNotPrivate, ReasonUnreadable},
		{allocation.ErrMalformedToken, ReasonWrongVariable},
		{errWrongVariable, ReasonWrongVariable},
		{errDeviceGone, ReasonDeviceGone},
		{errDeviceFailed, ReasonDeviceGone},
		{errUnknownGPUs, ReasonDeviceGone},
		{ocispec.ErrNotAssignable, ReasonDeviceGone},
		{errHyperV, ReasonHyperV},
		{errOutsidePod, ReasonRequest},
		{errNoSuchGPU, ReasonRequest},
		{errBadRequest, ReasonRequest},
		{context.DeadlineExceeded, ReasonSlow},
		{errors.New("a panic"), ReasonOther},
		{WithReason(ReasonConfig, allocation.ErrHeld), ReasonConfig},
	} {
		err := test.err
		if err != nil {
			err = Container{Name: "main", Pod: &Pod{}}.Refuse(fmt.Errorf("X: %w; do this", err))
		}
		got := ReasonOf(err)
		if got != test.want {
			t.Errorf("%v: %q, want %q", err, got, test.want)
		}
	}
}
