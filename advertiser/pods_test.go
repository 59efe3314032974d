package advertiser

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"directx-nri/internal/allocation"
	"directx-nri/internal/localgrpc"
)

func TestPodsGone(t *testing.T) {
	t.Parallel()
	mine := []allocation.LiveRecord{bound("a", held(ResourceDisplay, "A::0"))}
	const name = "default/name-of-a"
	waiting := []allocation.LiveRecord{held(ResourceDisplay, "A::0")}
	nameless := []allocation.LiveRecord{bound("a", held(ResourceDisplay, "A::0"))}
	nameless[0].Holder = &allocation.Holder{PodUID: "a", Container: "main"}
	madeAnew := []allocation.LiveRecord{mine[0], bound("b", held(ResourceDisplay, "A::1"))}
	madeAnew[1].Holder.PodName = mine[0].Holder.PodName

	type step struct {
		live   []allocation.LiveRecord
		listed []string
		// What happens before the kubelet is asked, and what meanwhile.
		newSocket, streamEnds, newSocketMeanwhile, streamEndsMeanwhile, noSocket bool
		err                                                                      error
		gone                                                                     string
		wantErr                                                                  string
	}
	there := step{live: mine, listed: []string{name}}
	notThere := step{live: mine, listed: []string{"default/other"}}
	isGone := step{live: mine, listed: []string{"default/other"}, gone: "a"}
	for _, test := range []struct {
		name  string
		steps []step
	}{
		{name: "deleted", steps: []step{there, there, isGone, isGone}},
		{name: "never seen", steps: []step{notThere, notThere}},
		{name: "back again, as a static pod", steps: []step{there, isGone, there, isGone}},
		{name: "not bound", steps: []step{{live: waiting, listed: []string{name}}, {live: waiting}}},
		{name: "bound by somebody without a name", steps: []step{{live: nameless, listed: []string{name, "/"}}, {live: nameless}}},
		{name: "bound after it was listed", steps: []step{{live: waiting, listed: []string{name}}, notThere}},
		{name: "made anew under its name", steps: []step{
			there,
			{live: madeAnew, listed: []string{"default/other"}, gone: "a"},
			{live: madeAnew, listed: []string{name}},
			{live: madeAnew, gone: "a b"},
		}},
		{name: "another kubelet, by its socket", steps: []step{
			there,
			{live: mine, newSocket: true},
			notThere, there, isGone,
		}},
		{name: "another kubelet, by its streams", steps: []step{
			there,
			{live: mine, streamEnds: true},
			notThere, there, isGone,
		}},
		{name: "another kubelet while the question is asked", steps: []step{
			there,
			{live: mine, newSocketMeanwhile: true, wantErr: "restarted"},
			notThere, there,
			{live: mine, streamEndsMeanwhile: true, wantErr: "restarted"},
			notThere,
			{live: mine, listed: []string{name}, streamEndsMeanwhile: true, wantErr: "restarted"},
			notThere,
		}},
		{name: "the kubelet cannot be reached", steps: []step{
			there,
			{live: mine, err: errors.New("no such socket"), wantErr: "no such socket"},
			{live: mine, noSocket: true, wantErr: "kubelet.sock"},
			notThere,
		}},
		{name: "the question failed once", steps: []step{
			there,
			{live: mine, err: errors.New("deadline"), wantErr: "deadline"},
			isGone,
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			socket := filepath.Join(t.TempDir(), kubeletSocket)
			made := 0
			makeSocket := func() {
				if err := os.WriteFile(socket, nil, 0o600); err != nil {
					t.Fatal(err)
				}
				// As if it were made seconds after the one before.
				made++
				if err := os.Chtimes(socket, at(made), at(made)); err != nil {
					t.Fatal(err)
				}
			}
			makeSocket()
			var now step
			var streamsEnded int64
			w := podWatch{
				list: func(context.Context) (map[string]bool, error) {
					if now.newSocketMeanwhile {
						makeSocket()
					}
					if now.streamEndsMeanwhile {
						streamsEnded++
					}
					pods := map[string]bool{}
					for _, name := range now.listed {
						pods[name] = true
					}
					return pods, now.err
				},
				running: func() (kubeletRun, error) {
					id, err := localgrpc.Identify(socket)
					return kubeletRun{socket: id, streamsEnded: streamsEnded}, err
				},
			}
			for i, step := range test.steps {
				now = step
				if step.newSocket {
					makeSocket()
				}
				if step.streamEnds {
					streamsEnded++
				}
				if step.noSocket {
					if err := os.Remove(socket); err != nil {
						t.Fatal(err)
					}
				}
				gone, err := w.gone(t.Context(), step.live)
				if step.noSocket {
					makeSocket()
				}
				if step.wantErr != "" {
					if gone != nil || err == nil || !strings.Contains(err.Error(), step.wantErr) {
						t.Errorf("step %d: got %v, %v, want an error with %q", i, gone, err, step.wantErr)
					}
					continue
				}
				var got []string
				for _, uid := range []string{"a", "b"} {
					if gone[uid] {
						got = append(got, uid)
					}
				}
				if err != nil || strings.Join(got, " ") != step.gone {
					t.Errorf("step %d: %q are gone, error %v; want %q", i, got, err, step.gone)
				}
			}
		})
	}
}

func TestPodsWithoutAnybodyToAsk(t *testing.T) {
	t.Parallel()
	gone, err := (&podWatch{}).gone(t.Context(), []allocation.LiveRecord{bound("a", held(ResourceDisplay, "A::0"))})
	if len(gone) != 0 || err != nil {
		t.Errorf("got %v, %v", gone, err)
	}
}
