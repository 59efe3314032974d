package daemon

import (
	"strings"
	"testing"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/config"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/testutil"
)

// TestConfigure: before a container starts, what gives it its GPUs is checked. A kubelet that
// allocates at creation waits for no query.
func TestConfigure(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		injection  policy.Injection
		servedBy   policy.ServedBy
		atCreation bool
		inject     bool
		want       string // in the error of Ready
		ready      string // in that of the health check
	}{
		"plugin":               {want: "is directx-nri running", ready: "is directx-nri running"},
		"shim":                 {servedBy: policy.ServedByShim, want: "is containerd running", ready: "is containerd running"},
		"shim, at creation":    {servedBy: policy.ServedByShim, atCreation: true, ready: "is containerd running"},
		"kubelet, at creation": {injection: policy.InjectByKubelet, atCreation: true, inject: true},
		"kubelet":              {injection: policy.InjectByKubelet, inject: true},
	} {
		dir := testutil.ShortDir(t)
		recorder, err := allocation.OpenRecorder(t.Context(), dir+"/records", testutil.Quiet())
		if err != nil {
			t.Fatal(err)
		}
		defer recorder.Close()
		log := testutil.Quiet()
		d := New(Options{StateDir: dir, RuntimeDir: dir, PodResources: dir + "/p", CRISocket: "/nowhere/s", NodeOS: "linux", AtCreation: test.atCreation}, config.Compiler{}, "v", log)
		d.recorder = recorder
		c, ready := d.configure(policy.Policy{Injection: test.injection, ServedBy: test.servedBy}, discovery.Static{})
		if (c.Inject != nil) != test.inject {
			t.Errorf("%s: injects: %t", name, c.Inject != nil)
		}
		for what, check := range map[string]struct {
			err  error
			want string
		}{"CheckReady": {c.CheckReady(t.Context(), "x/y", nil), test.want}, "health": {ready(t.Context()), test.ready}} {
			if (check.err == nil) != (check.want == "") || check.err != nil && !strings.Contains(check.err.Error(), check.want) {
				t.Errorf("%s: %s: %v, want %q", name, what, check.err, check.want)
			}
		}
	}
}
