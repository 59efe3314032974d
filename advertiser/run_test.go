package advertiser

import (
	"context"
	"errors"
	"testing"

	logtest "github.com/sirupsen/logrus/hooks/test"

	"github.com/directx-nri/directx-nri/advertiser/config"
	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/internal/testutil/allocationtest"
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
	for injection, want := range map[policy.Injection]bool{policy.InjectByNRI: false, policy.InjectByShim: false, policy.InjectByKubelet: true, policy.InjectAuto: true} {
		before := config.Compiled{Policy: policy.Policy{Injection: injection}}
		after := before
		after.Devices = []discovery.Device{{InstanceID: "new"}}
		after.Policy.Log.Level, after.Policy.ExtraMounts.Max, after.Policy.CompiledFrom.Config, after.Policy.VisibilityHints = "debug", 1, "c", true
		if got := needsNewRun(before, after, "windows"); got != want {
			t.Errorf("%s: %t", injection, got)
		}
	}
}

func TestCheckedList(t *testing.T) {
	t.Parallel()
	log, lines := logtest.NewNullLogger()
	errProblem, errUnknown := errors.New("a problem"), errors.New("unknown")
	var problem, checkErr error
	hasGPU := true
	g := &checkedList{
		list: discovery.Static{{InstanceID: "GPU"}}.Devices, log: log,
		offers: func([]discovery.Device) bool { return hasGPU },
		check:  func(context.Context) (error, error) { return problem, checkErr },
	}
	for i, step := range []struct {
		noGPU        bool
		problem, err error
		want         int // healthy devices
		wantErr      bool
		message      string // logged
	}{
		{noGPU: true, problem: errProblem, want: 1}, // Nothing is checked.
		{err: errUnknown, wantErr: true},
		{problem: errProblem, wantErr: true},
		{want: 1, message: "Advertising GPUs"},
		{want: 1},
		{err: errUnknown, want: 1},
		{problem: errProblem, message: "Stopped advertising GPUs: containers cannot start with them"},
		{err: errUnknown},
		{want: 1, message: "Advertising GPUs"},
	} {
		hasGPU, problem, checkErr = !step.noGPU, step.problem, step.err
		lines.Reset()
		devices, err := g.devices(t.Context())
		healthy := 0
		for _, d := range devices {
			if d.Health.OK() {
				healthy++
			} else if d.Health.Reason != errProblem.Error() {
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
}
