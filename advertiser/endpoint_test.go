package advertiser

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"directx-nri/internal/localgrpc"
)

func TestDecide(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	identity := func(name string) localgrpc.Identity {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		id, err := localgrpc.Identify(path)
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	one, other := identity("one"), identity("other")
	seen := func(second int, kubelet localgrpc.Identity, watching, everWatched int) observation {
		return observation{now: at(second), intact: true, kubeletExists: true, kubelet: kubelet, watching: watching, everWatched: everWatched}
	}
	times := timing{poll: 2 * time.Second, watch: 10 * time.Second}
	accepted := registration{with: one, at: t0, accepted: true, watchedBefore: 3, notBefore: at(1)}
	refused := registration{with: one, at: t0, watchedBefore: 3, notBefore: at(3)}
	for _, test := range []struct {
		name      string
		standing  registration
		seen      observation
		want      step
		wait      time.Duration
		freshWait bool // the next failure waits as after a first one
	}{
		{name: "first", standing: registration{}, seen: seen(0, one, 0, 0), want: stepRegister, freshWait: true},
		{name: "our socket is gone", standing: accepted, seen: observation{kubeletExists: true, kubelet: one}, want: stepServeAgain},
		{name: "our socket and the kubelet's are gone", standing: accepted, seen: observation{}, want: stepServeAgain},
		{name: "the kubelet is not there", standing: registration{}, seen: observation{intact: true}, want: stepWait, wait: 2 * time.Second},
		{name: "the kubelet went away", standing: accepted, seen: observation{intact: true, watching: 1}, want: stepWait, wait: 2 * time.Second},
		{name: "registered and watched", standing: accepted, seen: seen(5, one, 1, 4), want: stepWait, wait: 2 * time.Second},
		{name: "registered and watched for long", standing: accepted, seen: seen(10, one, 1, 4), want: stepWait, wait: 2 * time.Second, freshWait: true},
		{name: "another kubelet", standing: accepted, seen: seen(0, other, 1, 4), want: stepRegister, freshWait: true},
		{name: "another kubelet after a failure", standing: refused, seen: seen(0, other, 0, 3), want: stepRegister, freshWait: true},
		{name: "not watched yet", standing: accepted, seen: seen(4, one, 0, 3), want: stepWait, wait: 2 * time.Second},
		{name: "not watched yet, soon too late", standing: accepted, seen: seen(9, one, 0, 3), want: stepWait, wait: time.Second},
		{name: "never watched", standing: accepted, seen: seen(10, one, 0, 3), want: stepRegister},
		{name: "watched no longer", standing: accepted, seen: seen(2, one, 0, 4), want: stepRegister},
		{name: "watched no longer, at once", standing: accepted, seen: seen(0, one, 0, 4), want: stepWait, wait: time.Second},
		{name: "refused, soon after", standing: refused, seen: seen(2, one, 0, 3), want: stepWait, wait: time.Second},
		{name: "refused, later", standing: refused, seen: seen(3, one, 0, 3), want: stepRegister},
		{name: "refused, though an old stream is open", standing: refused, seen: seen(3, one, 1, 3), want: stepRegister},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r := test.standing
			r.timing = times
			r.retry = backoff{first: 1, limit: 1000, current: 64}
			got, wait := r.decide(test.seen)
			if got != test.want || wait != test.wait {
				t.Errorf("got step %d and %s, want step %d and %s", got, wait, test.want, test.wait)
			}
			if fresh := r.retry.next() == 1; fresh != test.freshWait {
				t.Errorf("the delay is reset: %v, want %v", fresh, test.freshWait)
			}
		})
	}
}

func TestDone(t *testing.T) {
	t.Parallel()
	r := registration{retry: backoff{first: time.Second, limit: time.Minute}}
	seen := observation{everWatched: 7}
	for i, test := range []struct {
		err       error
		first     bool
		notBefore time.Time
	}{
		{err: errors.New("refused"), first: true, notBefore: at(1)},
		{err: errors.New("refused"), first: false, notBefore: at(2)},
		{err: errors.New("timeout"), first: true, notBefore: at(4)},
		{err: nil, first: true, notBefore: at(8)},
	} {
		if first := r.done(seen, t0, test.err); first != test.first {
			t.Errorf("%d: changed: %v", i, first)
		}
		if !r.notBefore.Equal(test.notBefore) || r.accepted != (test.err == nil) || r.watchedBefore != 7 {
			t.Errorf("%d: %+v", i, r)
		}
	}
}

func TestBackoff(t *testing.T) {
	t.Parallel()
	b := backoff{first: 100, limit: 1000}
	for range 2 {
		for i, want := range []time.Duration{100, 200, 400, 800, 1000, 1000} {
			if got := b.next(); got != want {
				t.Errorf("%d: got %d, want %d", i, got, want)
			}
		}
		b.reset()
	}
}
