package advertiser

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/localgrpc"
)

func TestPodTracker(t *testing.T) {
	t.Parallel()
	withID := func(id allocation.ID, record allocation.Entry) allocation.Entry {
		record.ID = id
		return record
	}
	unbound := []allocation.Entry{withID("r", held(displayResource, "A::0"))}
	mine := []allocation.Entry{bound("a", unbound[0])}
	nameless := []allocation.Entry{mine[0]}
	nameless[0].Holder = &allocation.Holder{PodUID: "a", Container: "main"}
	type step struct {
		live []allocation.Entry
		// listed are pods, with a replica after a colon.
		listed string
		// after is the time since the last step.
		after time.Duration
		// newSocket is before the call, restart during it.
		newSocket, restart, noSocket bool
		err                          error
		ended                        bool
		wantErr                      string
	}
	exists := step{live: mine, listed: "name-of-a"}
	missing := step{live: mine, listed: "other"}
	ended := step{live: mine, listed: "other", ended: true}
	static := func(after time.Duration) step {
		return step{live: mine, listed: "proxy-node-1 other-node-1", after: after}
	}
	api := func(after time.Duration) step { return step{live: mine, listed: "proxy-node-1 web-a", after: after} }
	apiOver := func(after time.Duration) step {
		return step{live: mine, listed: "proxy-node-1 web-a", after: after, ended: true}
	}
	for name, steps := range map[string][]step{
		"deleted":                            {exists, exists, missing, ended, ended},
		"missing once":                       {exists, missing, exists, missing, ended},
		"never listed":                       {missing, missing, missing},
		"deleted before the start":           {api(0), api(unlistedLimit - 1), apiOver(1)},
		"listed late":                        {api(0), api(unlistedLimit - 1), {live: mine, listed: "name-of-a cni-b", after: time.Hour}, api(0), apiOver(0)},
		"only static pods":                   {static(0), static(time.Hour), static(time.Hour), api(0), api(unlistedLimit - 1), apiOver(1)},
		"another kubelet, then API pods":     {api(0), {live: mine, newSocket: true, after: time.Hour}, api(0), api(unlistedLimit - 1), apiOver(1)},
		"not bound, never listed":            {{live: unbound, listed: "web-a cni-b"}, {live: unbound, listed: "web-a cni-b", after: time.Hour}, {live: unbound, listed: "web-a cni-b", after: time.Hour}},
		"no name, never listed":              {{live: nameless, listed: "web-a cni-b"}, {live: nameless, listed: "web-a cni-b", after: time.Hour}},
		"not bound, and not listed with it":  {{live: unbound, listed: "name-of-a"}, {live: unbound}, {live: unbound}},
		"not bound, listed with it":          {{live: unbound, listed: "job:A::0"}, {live: unbound}, {live: unbound, ended: true}},
		"not bound, then another pod has it": {{live: unbound, listed: "old:A::0"}, {live: unbound, listed: "old new:A::0"}, {live: unbound, listed: "new:A::0"}, {live: unbound}, {live: unbound, ended: true}},
		"listed with it, then bound":         {{live: unbound, listed: "name-of-a:A::0"}, missing, ended},
		"bound without a name":               {{live: nameless, listed: "name-of-a"}, {live: nameless}, {live: nameless}},
		"another kubelet":                    {exists, {live: mine, newSocket: true}, missing, missing, exists, missing, ended},
		"another kubelet during the call":    {exists, {live: mine, restart: true, wantErr: "restarted"}, missing, missing, exists, missing, ended},
		"no kubelet":                         {exists, {live: mine, noSocket: true, wantErr: "kubelet.sock"}, missing, missing},
		"a call fails":                       {exists, missing, {live: mine, err: errors.New("deadline"), wantErr: "deadline"}, ended},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			socket := filepath.Join(t.TempDir(), kubeletSocket)
			version := 0
			create := func() {
				version++
				if err := errors.Join(os.WriteFile(socket, nil, 0o600), os.Chtimes(socket, at(version), at(version))); err != nil {
					t.Fatal(err)
				}
			}
			create()
			var now step
			clock := at(0)
			tracker := PodTracker{now: func() time.Time { return clock }, list: func(context.Context) (containers []ContainerDevices, _ error) {
				if now.restart {
					create()
				}
				for _, word := range strings.Fields(now.listed) {
					pod, replica, _ := strings.Cut(word, ":")
					containers = append(containers, ContainerDevices{Pod: Pod{"default", pod}, Replicas: map[string][]string{displayResource: {replica}}})
				}
				return containers, now.err
			}}
			for i, step := range steps {
				now = step
				clock = clock.Add(step.after)
				if step.newSocket {
					create()
				}
				if step.noSocket {
					if err := os.Remove(socket); err != nil {
						t.Fatal(err)
					}
				}
				_, got, err := tracker.update(t.Context(), step.live, func() (localgrpc.Identity, error) { return localgrpc.Identify(socket) })
				if step.noSocket {
					create()
				}
				if step.wantErr != "" {
					if got != nil || err == nil || !strings.Contains(err.Error(), step.wantErr) {
						t.Errorf("step %d: %v, %v, want an error with %q", i, got, err, step.wantErr)
					}
					continue
				}
				if err != nil || (len(got) > 0) != step.ended {
					t.Errorf("step %d: %v, %v; ended: %t", i, got, err, step.ended)
				}
			}
		})
	}
}
