package advertiser

import (
	"context"
	"strings"
	"testing"

	logtest "github.com/sirupsen/logrus/hooks/test"

	"github.com/directx-nri/directx-nri/advertiser/config"
	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/discovery/node"
	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/internal/testutil/allocationtest"
	"github.com/directx-nri/directx-nri/shim/shimcheck"
)

// TestConfigure: before a container starts, the component that gives it its GPUs is checked.
func TestConfigure(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		injection policy.Injection
		inject    bool
		want      string // in the error of CheckStart, "" if there is none
	}{
		"plugin":  {injection: policy.InjectByNRI, want: "is directx-nri running"},
		"shim":    {injection: policy.InjectByShim},
		"kubelet": {injection: policy.InjectByKubelet, inject: true},
	} {
		dir := testutil.ShortDir(t)
		log := testutil.Quiet()
		d := New(Options{RuntimeDir: dir, PodResources: dir + "/p", CRISocket: "/nowhere/s"}, config.Compiler{StateDir: dir, NodeOS: "linux"}, "v", log)
		d.recorder = allocationtest.Open(t, dir+"/records")
		c := d.pluginConfig(policy.Resolved{Policy: policy.Policy{Injection: test.injection}}, discovery.Static{})
		if (c.KubeletAnswer != nil) != test.inject {
			t.Errorf("%s: injects: %t", name, c.KubeletAnswer != nil)
		}
		if (c.CheckStart != nil) != (test.want != "") {
			t.Errorf("%s: checks starts: %t", name, c.CheckStart != nil)
		} else if c.CheckStart != nil {
			testutil.CheckError(t, name, c.CheckStart(t.Context()), test.want)
		}
	}
}

func TestNeedsNewRun(t *testing.T) {
	t.Parallel()
	for injection, want := range map[policy.Injection]bool{policy.InjectByNRI: false, policy.InjectByKubelet: true} {
		before := config.Compiled{Policy: policy.Policy{Injection: injection}}
		after := before
		after.Policy.Log.Level, after.Policy.ExtraMounts.Max, after.Policy.CompiledFrom.Config, after.Policy.VisibilityHints = "debug", 1, "c", true
		if got := needsNewRun(before, after); got != want {
			t.Errorf("%s: %t", injection, got)
		}
	}
}

func TestCheckedList(t *testing.T) {
	t.Parallel()
	log, lines := logtest.NewNullLogger()
	var result error
	check := func(context.Context) error { return result }
	g := &checkedList{list: discovery.Static{{InstanceID: "GPU"}}.Devices, check: check, log: log, problem: errNeverPassed}
	unknown := shimcheck.Check(t.Context(), t.TempDir(), "/no/such/socket")
	for i, step := range []struct {
		result  error
		want    int
		wantErr bool
		message string // logged
	}{
		{result: unknown, wantErr: true},
		{result: shimcheck.ErrNotUsed, wantErr: true},
		{result: nil, want: 1, message: "Advertising GPUs"},
		{result: nil, want: 1},
		{result: unknown, want: 1},
		{result: allocation.ErrNotWritable, message: "Stopped advertising GPUs: containers cannot start with them"},
		{result: unknown},
		{result: nil, want: 1, message: "Advertising GPUs"},
	} {
		result = step.result
		lines.Reset()
		devices, err := g.devices(t.Context())
		healthy := 0
		for _, d := range devices {
			if d.Health.OK() {
				healthy++
			} else if !strings.Contains(d.Health.Reason, allocation.ErrNotWritable.Error()) {
				t.Errorf("step %d: the reason is %q", i, d.Health.Reason)
			}
		}
		if healthy != step.want || (err != nil) != step.wantErr || err == nil && len(devices) != 1 {
			t.Errorf("step %d: %v, %v", i, devices, err)
		}
		message := ""
		if entry := lines.LastEntry(); entry != nil {
			message = entry.Message
		}
		if message != step.message {
			t.Errorf("step %d: logged %q, want %q", i, message, step.message)
		}
	}
	g.list = func(context.Context) ([]discovery.Device, error) {
		return []discovery.Device{{InstanceID: "GPU"}}, node.ErrNotSaved
	}
	if devices, err := g.devices(t.Context()); err != nil || len(devices) != 1 || devices[0].Health.Reason != node.ErrNotSaved.Error() {
		t.Errorf("a list that is not saved: %v, %v", devices, err)
	}
}
