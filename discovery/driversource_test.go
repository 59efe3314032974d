package discovery

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"github.com/directx-nri/directx-nri/internal/testutil"
)

func TestDriverSource(t *testing.T) {
	t.Parallel()
	log, hook := logtest.NewNullLogger()
	var devices []Device
	var err error
	s := NewDriverSource(log, func(context.Context) ([]Device, error) { return slices.Clone(devices), err })
	two := []Device{{InstanceID: "0", SupportsDisplay: true}, {InstanceID: "1", SupportsDisplay: true}}
	failed := errors.New("access is denied")
	for _, step := range []struct {
		name    string
		devices []Device
		err     error
		want    int // devices, -1 for an error
		logged  []string
	}{
		{"no list", nil, failed, -1, []string{"error Failed to read the GPUs"}},
		{"no list again", nil, failed, -1, nil},
		{"first list", two, nil, 2, []string{"info GPUs can be read again", "info GPU found", "info GPU found"}},
		{"same list", two, nil, 2, nil},
		{"the last list, unhealthy", nil, failed, 2, []string{"error Failed to read the GPUs", "warning GPU is unhealthy", "warning GPU is unhealthy"}},
		{"still", nil, failed, 2, nil},
		{"recovery", two[:1], nil, 1, []string{"info GPUs can be read again", "info GPU changed", "info GPU removed"}},
		{"no GPU", nil, nil, 0, []string{"info GPU removed"}},
	} {
		hook.Reset()
		devices, err = step.devices, step.err
		got, gotErr := s.Devices(t.Context())
		if step.want < 0 {
			testutil.CheckError(t, step.name, gotErr, "find GPUs: access is denied")
		} else if gotErr != nil || len(got) != step.want {
			t.Errorf("%s: %v, %v, want %d GPUs", step.name, got, gotErr, step.want)
		}
		for _, d := range got {
			if d.Health.OK() != (step.err == nil) || !d.Health.OK() && d.Health.Reason != "the driver does not answer: access is denied" {
				t.Errorf("%s: health %q", step.name, d.Health.Reason)
			}
		}
		var logged []string
		for _, entry := range hook.AllEntries() {
			logged = append(logged, entry.Level.String()+" "+entry.Message)
		}
		if diff := cmp.Diff(step.logged, logged); diff != "" {
			t.Errorf("%s (-want +got):\n%s", step.name, diff)
		}
	}
}

// A panic is an error of the caller, although it is in another goroutine. Like another error, it
// makes the devices of the last list unhealthy.
func TestDriverPanics(t *testing.T) {
	t.Parallel()
	panics := true
	s := NewDriverSource(nil, func(context.Context) ([]Device, error) {
		if panics {
			panic("a bug") //nolint:forbidigo // It is the bug.
		}
		return []Device{{InstanceID: "0"}}, nil
	})
	for range 2 {
		_, err := s.Devices(t.Context())
		testutil.CheckError(t, "a panic", err, "please report it: a bug")
	}
	for _, panics = range []bool{false, true} {
		if devices, err := s.Devices(t.Context()); err != nil || len(devices) != 1 || devices[0].Health.OK() == panics {
			t.Errorf("panics %t: %v, %v", panics, devices, err)
		}
	}
}

// A driver that hangs does not hang the caller, and its devices are unhealthy until it answers.
func TestDriverHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		answers := make(chan struct{}, 2)
		s := NewDriverSource(nil, func(context.Context) ([]Device, error) {
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
	s := NewDriverSource(nil, func(context.Context) ([]Device, error) { <-release; return nil, nil })
	for range 2 { // The first one hangs in the driver, the second waits for it.
		ctx, cancel := context.WithTimeoutCause(t.Context(), 10*time.Millisecond, errors.New("the cause"))
		defer cancel()
		_, err := s.Devices(ctx)
		testutil.CheckError(t, "a driver that hangs", err, "the cause")
	}
}
