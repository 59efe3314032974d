package decision

import (
	"context"
	"errors"
	"fmt"
	"slices"
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

func TestPresentedTokens(t *testing.T) {
	t.Parallel()
	const displayKey = "directx.microsoft.com/allocation.display"
	token1, token2 := strings.Repeat("1", 32), strings.Repeat("2", 32)
	of := func(variable, token string) presentedToken {
		return presentedToken{variable, allocation.Token(token), nil}
	}
	malformed := func(variable string) []presentedToken {
		return []presentedToken{{variable, "", allocation.ErrMalformedToken}}
	}
	for name, test := range map[string]struct {
		os         string
		env        []string
		annotation string // of the allocation in a pod, "" for a standalone container
		want       []presentedToken
	}{
		"nothing": {"linux", []string{"A=1", "DIRECTX_VISIBLE_DEVICES=all", "XDIRECTX_ALLOCATION_=1", "DIRECTX_ALLOCATIONS=1"}, "", nil},
		"sorted, each once": {"linux", []string{"DIRECTX_ALLOCATION_B=" + token2, "DIRECTX_ALLOCATION_A=" + token1, "DIRECTX_ALLOCATION_A=" + token1}, "",
			[]presentedToken{of("DIRECTX_ALLOCATION_A", token1), of("DIRECTX_ALLOCATION_B", token2)}},
		"twice, two values": {"linux", []string{"DIRECTX_ALLOCATION_A=" + token2, "DIRECTX_ALLOCATION_A=" + token1}, "",
			[]presentedToken{of("DIRECTX_ALLOCATION_A", token1), of("DIRECTX_ALLOCATION_A", token2)}},
		"no value":             {"linux", []string{"DIRECTX_ALLOCATION_"}, "", malformed("DIRECTX_ALLOCATION_")},
		"other case, Linux":    {"linux", []string{"directx_allocation_a=1"}, "", nil},
		"other case, Windows":  {"windows", []string{"directx_Allocation_a=1"}, "", malformed("DIRECTX_ALLOCATION_A")},
		"no resource, Windows": {"windows", []string{"directx_allocation_=1"}, "", malformed("DIRECTX_ALLOCATION_")},
		"other annotation":     {"linux", []string{"DIRECTX_ALLOCATION_DISPLAY=1"}, "directx.microsoft.com/display", nil},
		"letter of another":    {"windows", []string{"D\u0131RECTX_ALLOCATION_A=1"}, "", nil},
		"links of a Service": {"linux", []string{"DIRECTX_ALLOCATION_SERVICE_HOST=10.0.0.1", "DIRECTX_ALLOCATION_PORT=tcp://10.0.0.1:80",
			"DIRECTX_ALLOCATION_A=" + token1}, displayKey, []presentedToken{of("DIRECTX_ALLOCATION_A", token1)}},
		"overridden, Linux":   {"linux", []string{"DIRECTX_ALLOCATION_DISPLAY=", "DIRECTX_ALLOCATION_COMPUTE="}, displayKey, malformed("DIRECTX_ALLOCATION_DISPLAY")},
		"overridden, Windows": {"windows", []string{"directx_allocation_Display=1"}, displayKey, malformed("DIRECTX_ALLOCATION_DISPLAY")},
		"another domain's":    {"linux", []string{"DIRECTX_ALLOCATION_A_COM_GPU=1"}, "directx.microsoft.com/allocation.a.com.gpu", malformed("DIRECTX_ALLOCATION_A_COM_GPU")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := Container{OS: test.os, Env: test.env}
			if test.annotation != "" {
				c.Pod, c.Annotations = &Pod{}, map[string]string{test.annotation: "x"}
			}
			if diff := cmp.Diff(test.want, presentedTokens(c), cmp.AllowUnexported(presentedToken{}), cmpopts.EquateErrors()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestOverriddenTokens(t *testing.T) {
	t.Parallel()
	of := func(digit string) string { return strings.Repeat(digit, 32) }
	annotations := map[string]string{
		"directx.microsoft.com/allocation.display": of("0"), "directx.microsoft.com/allocation.b": of("2"), "directx.microsoft.com/allocation.a": of("1"),
		"directx.microsoft.com/allocation.c": "x", "directx.microsoft.com/other": of("3"),
	}
	want := []allocation.Token{allocation.Token(of("1")), allocation.Token(of("2"))}
	if got := overriddenTokens(annotations, []presentedToken{{variable: "DIRECTX_ALLOCATION_DISPLAY", token: allocation.Token(of("0"))}}); !slices.Equal(got, want) {
		t.Errorf("%d tokens", len(got))
	}
}

// TestIgnoredVariable: a container whose only request is ignored starts on a node whose GPUs are
// unknown, and no other does.
func TestIgnoredVariable(t *testing.T) {
	t.Parallel()
	const visible = VisibleVariable + "=0"
	for name, test := range map[string]struct {
		c       Container
		ignored bool
	}{
		"variable":                {Container{Env: []string{visible}}, true},
		"on Windows":              {Container{OS: "windows", Env: []string{visible}}, false},
		"annotation":              {Container{Annotations: map[string]string{VisibleAnnotation: "0"}, Env: []string{visible}}, false},
		"variable and allocation": {Container{Env: []string{visible, "DIRECTX_ALLOCATION_=x"}}, false},
	} {
		d := decider()
		d.Source = &source{listErr: errors.New("unknown")}
		if outcome, err := d.Preview(t.Context(), read(test.c)); (err == nil && outcome.UnchangedReason != "") != test.ignored {
			t.Errorf("%s: %+v, %v", name, outcome, err)
		}
		d.Policy.Standalone.Environment = true
		if outcome, err := d.Preview(t.Context(), read(test.c)); err == nil {
			t.Errorf("%s: %+v with a policy that honors it", name, outcome)
		}
	}
}

func TestReasonOf(t *testing.T) {
	t.Parallel()
	var hung error
	synctest.Test(t, func(t *testing.T) {
		_, hung = discovery.NewDriverSource(nil, func(ctx context.Context) ([]discovery.Device, error) { <-ctx.Done(); return nil, ctx.Err() }).Devices(t.Context())
	})
	for want, errs := range map[Reason][]error{
		ReasonNoRecord:      {allocation.ErrNotFound},
		ReasonHeld:          {allocation.ErrHeld},
		ReasonUnreadable:    {allocation.ErrUnreadable, access.ErrNotPrivate},
		ReasonWrongVariable: {allocation.ErrMalformedToken, errWrongVariable, errOverridden},
		ReasonDeviceGone:    {discovery.ErrGone, discovery.ErrUnusable, gpuedits.ErrNotAssignable},
		ReasonHyperV:        {errHyperV},
		ReasonRequest:       {errOutsidePod, errNoSuchGPU, errBadRequest},
		ReasonSlow:          {context.DeadlineExceeded, hung},
		ReasonOther:         {errors.New("unknown"), fmt.Errorf("%w: a panic", errlog.ErrInternal)},
		ReasonConfig:        {WithReason(ReasonConfig, allocation.ErrHeld)},
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
