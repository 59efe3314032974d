package deviceplugin

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/directx-nri/directx-nri/internal/localgrpc"
	"github.com/directx-nri/directx-nri/internal/testutil"
)

func TestRegistrationDue(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	identity := func(name string) localgrpc.FileIdentity {
		path := filepath.Join(dir, name)
		testutil.NoError(t, os.WriteFile(path, nil, 0o600))
		id, err := localgrpc.Identify(path)
		testutil.NoError(t, err)
		return id
	}
	one, other := identity("one"), identity("other")
	accepted := registration{kubelet: one, attempted: t0, accepted: true}
	refused := registration{kubelet: one, attempted: t0}
	watched := streams{open: 1}
	closed := func(second int) streams { return streams{lastClosed: at(second)} }
	for _, test := range []struct {
		name     string
		standing registration
		after    int // seconds
		kubelet  localgrpc.FileIdentity
		streams  streams
		want     bool
	}{
		{name: "no longer watched, the kubelet may be ending the connection", standing: accepted, after: 102, kubelet: one, streams: closed(100)},
		{name: "no longer watched, the kubelet has ended the connection", standing: accepted, after: 103, kubelet: one, streams: closed(100), want: true},
		{name: "refused, the kubelet may be ending the connection", standing: refused, after: 102, kubelet: one, streams: closed(100)},
		{name: "another kubelet ends no connection", standing: accepted, after: 102, kubelet: other, streams: closed(102), want: true},
		{name: "still watched", standing: accepted, after: 2, kubelet: one, streams: watched},
		{name: "first", kubelet: one, want: true},
		{name: "registered and watched", standing: accepted, after: 100, kubelet: one, streams: watched},
		{name: "another kubelet", standing: accepted, kubelet: other, streams: watched, want: true},
		{name: "another kubelet after a failure", standing: refused, kubelet: other, want: true},
		{name: "not watched yet", standing: accepted, after: 9, kubelet: one},
		{name: "not watched", standing: accepted, after: 10, kubelet: one, want: true},
		{name: "refused, soon after", standing: refused, after: 1, kubelet: one},
		{name: "refused, later", standing: refused, after: 2, kubelet: one, want: true},
		{name: "refused, though an old stream is open", standing: refused, after: 2, kubelet: one, streams: watched, want: true},
	} {
		r := test.standing
		timing := timing{watchTimeout: 10 * time.Second, pollInterval: 2 * time.Second, settleTime: 3 * time.Second}
		if got := r.due(at(test.after), timing, test.kubelet, test.streams); got != test.want {
			t.Errorf("%s: %t", test.name, got)
		}
	}
}

// TestFirstRegistration: a kubelet that runs already may still have to end its connection to an earlier
// process.
func TestFirstRegistration(t *testing.T) {
	t.Parallel()
	settling := fastTiming()
	settling.settleTime = 300 * time.Millisecond
	dir := testutil.ShortDir(t)
	k := startKubelet(t, dir)
	began := time.Now()
	runWith(t, testConfig(t, dir, newSource(displayGPU("A"))), settling)
	k.await(displayResource, "A-0 A-1")
	if took := time.Since(began); took < settling.settleTime {
		t.Errorf("registered after %s", took)
	}
}
