package daemon

import (
	"context"
	"errors"
	"testing"

	logtest "github.com/sirupsen/logrus/hooks/test"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/containerdconfig"
)

func TestCheckedSource(t *testing.T) {
	t.Parallel()
	log, lines := logtest.NewNullLogger()
	var result error
	g := &checkedSource{Source: discovery.Static{{InstanceID: "GPU"}}, check: func(context.Context) error { return result }, log: log}
	unknown := errors.New("no such socket")
	for i, step := range []struct {
		result  error
		want    int
		wantErr bool
		message string // logged
	}{
		{result: unknown, wantErr: true},
		{result: containerdconfig.ErrNotRouted, wantErr: true},
		{result: nil, want: 1, message: "Advertising GPUs"},
		{result: nil, want: 1},
		{result: unknown, want: 1},
		{result: allocation.ErrNotWritable, message: "Stopped advertising GPUs: containers cannot start with them"},
		{result: unknown},
		{result: nil, want: 1, message: "Advertising GPUs"},
	} {
		result = step.result
		lines.Reset()
		devices, err := g.Devices(t.Context())
		if len(devices) != step.want || (err != nil) != step.wantErr {
			t.Errorf("step %d: %v, %v", i, devices, err)
		}
		message := ""
		if entry := lines.LastEntry(); entry != nil {
			message = entry.Message
		}
		if message != step.message {
			t.Errorf("step %d: logged %q, want %q", i, message, step.message)
		}
		if ready := g.CheckReady(t.Context(), "", nil); (ready == nil) != (step.result == nil || errors.Is(step.result, unknown)) {
			t.Errorf("step %d: ready: %v", i, ready)
		}
	}
}
