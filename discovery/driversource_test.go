package discovery

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/internal/testutil"
)

func TestDriverSource(t *testing.T) {
	t.Parallel()
	var devices []Device
	var err error
	s := NewDriverSource(func(context.Context) ([]Device, error) {
		if errors.Is(err, errlog.ErrInternal) {
			return devices[:1], nil // A panic: there is none.
		}
		return slices.Clone(devices), err
	})
	two := []Device{{InstanceID: "0", SupportsDisplay: true}, {InstanceID: "1", SupportsDisplay: true}}
	failed := errors.New("access is denied")
	for _, step := range []struct {
		name    string
		devices []Device
		err     error
		want    int // devices, -1 for an error
	}{
		{"no list", nil, failed, -1},
		{"a panic, no list", nil, errlog.ErrInternal, -1},
		{"first list", two, nil, 2},
		{"the last list, unhealthy", nil, failed, 2},
		{"still", nil, failed, 2},
		{"a panic", nil, errlog.ErrInternal, 2},
		{"recovery", two[:1], nil, 1},
		{"no GPU", nil, nil, 0},
	} {
		devices, err = step.devices, step.err
		got, gotErr := s.Devices(t.Context())
		says := "access is denied"
		if errors.Is(step.err, errlog.ErrInternal) {
			says = errlog.ErrInternal.Error() + ": runtime error: slice bounds out of range [:1] with capacity 0 (driversource_test.go:"
		}
		if step.want < 0 {
			testutil.CheckError(t, step.name, gotErr, "find GPUs: "+says)
		} else if gotErr != nil || len(got) != step.want {
			t.Errorf("%s: %v, %v, want %d GPUs", step.name, got, gotErr, step.want)
		}
		for _, d := range got {
			if d.Health.OK() != (step.err == nil) || !d.Health.OK() && !strings.HasPrefix(d.Health.Reason, "the driver does not answer: "+says) {
				t.Errorf("%s: health %q", step.name, d.Health.Reason)
			}
		}
	}
}

// A driver that hangs does not hang the caller, and its devices are unhealthy until it answers.
func TestDriverHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		answers := make(chan struct{}, 2)
		s := NewDriverSource(func(context.Context) ([]Device, error) {
			<-answers
			return []Device{{InstanceID: "0"}}, nil
		})
		answers <- struct{}{}
		for i, healthy := range []bool{true, false, false, true} { // The second call hangs in the driver, the third waits for it.
			if i == 3 {
				answers <- struct{}{}
				answers <- struct{}{}
			}
			began := time.Now()
			devices, err := s.Devices(t.Context())
			if err != nil || len(devices) != 1 || devices[0].Health.OK() != healthy {
				t.Errorf("call %d: %v, %v", i, devices, err)
			}
			if took := time.Since(began); !healthy && took != answerTimeout {
				t.Errorf("call %d took %s, want %s", i, took, answerTimeout)
			}
		}
	})
}

// A caller with a deadline does not wait longer.
func TestDriverCanceled(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	defer close(release)
	s := NewDriverSource(func(context.Context) ([]Device, error) { <-release; return nil, nil })
	for range 2 { // The first one hangs in the driver, the second waits for it.
		ctx, cancel := context.WithTimeoutCause(t.Context(), 10*time.Millisecond, errors.New("the cause"))
		defer cancel()
		_, err := s.Devices(ctx)
		testutil.CheckError(t, "a driver that hangs", err, "the cause")
	}
}
