package advertiser

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/directx-nri/directx-nri/internal/localgrpc"
)

func TestDue(t *testing.T) {
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
	accepted := registration{with: one, at: t0, accepted: true}
	refused := registration{with: one, at: t0}
	for _, test := range []struct {
		name     string
		standing registration
		after    int // seconds
		kubelet  localgrpc.Identity
		watched  bool
		opened   int
		want     bool
	}{
		{name: "no longer watched, soon after", standing: accepted, after: 1, kubelet: one, opened: 1},
		{name: "no longer watched", standing: accepted, after: 2, kubelet: one, opened: 1, want: true},
		{name: "still watched", standing: accepted, after: 2, kubelet: one, opened: 1, watched: true},
		{name: "first", kubelet: one, want: true},
		{name: "registered and watched", standing: accepted, after: 100, kubelet: one, watched: true},
		{name: "another kubelet", standing: accepted, kubelet: other, watched: true, want: true},
		{name: "another kubelet after a failure", standing: refused, kubelet: other, want: true},
		{name: "not watched yet", standing: accepted, after: 9, kubelet: one},
		{name: "not watched", standing: accepted, after: 10, kubelet: one, want: true},
		{name: "refused, soon after", standing: refused, after: 1, kubelet: one},
		{name: "refused, later", standing: refused, after: 2, kubelet: one, want: true},
		{name: "refused, though an old stream is open", standing: refused, after: 2, kubelet: one, watched: true, want: true},
	} {
		r := test.standing
		r.grace, r.retry = 10*time.Second, 2*time.Second
		if got := r.due(at(test.after), test.kubelet, test.watched, test.opened); got != test.want {
			t.Errorf("%s: %t", test.name, got)
		}
	}
}
