package deviceplugin

import (
	gocmp "cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/localgrpc"
	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/internal/testutil/grpctest"
)

func TestPodTracker(t *testing.T) {
	t.Parallel()
	withID := func(id allocation.ID, record allocation.Entry) allocation.Entry {
		record.ID = id
		return record
	}
	unbound := []allocation.Entry{withID("r", held(displayResource, "A-0"))}
	mine := []allocation.Entry{bound("a", unbound[0])}
	nameless, ofInit := []allocation.Entry{mine[0]}, []allocation.Entry{mine[0]}
	nameless[0].Holder = &allocation.Holder{PodUID: "a", Container: "main"}
	type step struct {
		records []allocation.Entry
		// listed are POD[/CONTAINER][:REPLICA]; the container is main by default.
		listed string
		// after is the time since the last step, by default missingTimeout.
		after time.Duration
		// The kubelet creates a new socket before the call, or during it (restart).
		newSocket, restart, noSocket bool
		err                          error
		ended                        bool
		wantErr                      string
	}
	ofInit[0].Holder = &allocation.Holder{PodUID: "a", Container: "init", PodNamespace: mine[0].Holder.PodNamespace, PodName: mine[0].Holder.PodName}
	later := []allocation.Entry{mine[0]}
	later[0].Sequence++
	exists := step{records: mine, listed: "name-of-a:A-0"}
	missing := step{records: mine, listed: "other"}
	again := func(after time.Duration) step { return step{records: mine, listed: "other", after: after} }
	ended := step{records: mine, listed: "other", ended: true}
	static := func(after time.Duration) step {
		return step{records: mine, listed: "proxy-node-1 other-node-1", after: after}
	}
	api := func(after time.Duration) step { return step{records: mine, listed: "proxy-node-1 web-a", after: after} }
	apiOver := func(after time.Duration) step {
		return step{records: mine, listed: "proxy-node-1 web-a", after: after, ended: true}
	}
	for name, steps := range map[string][]step{
		"deleted":                         {exists, exists, missing, ended, ended},
		"missing once":                    {exists, missing, exists, missing, ended},
		"missing twice within moments":    {exists, missing, again(1), again(missingTimeout - 2), {records: mine, listed: "other", after: 1, ended: true}},
		"recreated under its name":        {exists, {records: mine, listed: "name-of-a:A-1"}, {records: mine, listed: "name-of-a", ended: true}},
		"recreated with other containers": {exists, {records: mine, listed: "name-of-a/other:A-1"}, {records: mine, listed: "name-of-a/other:A-1", ended: true}},
		"of an init container":            {{records: ofInit, listed: "name-of-a"}, {records: ofInit, listed: "name-of-a"}, {records: ofInit, listed: "name-of-a"}},
		"never listed":                    {missing, missing, missing},
		"deleted before the start":        {api(0), api(neverListedTimeout - 1), apiOver(1)},
		"listed late":                     {api(0), api(neverListedTimeout - 1), {records: mine, listed: "name-of-a:A-0 cni-b", after: time.Hour}, api(0), apiOver(0)},
		"never listed, of this kubelet":   {{listed: "other"}, {listed: "other"}, {records: later, listed: "other"}, {records: later, listed: "other", ended: true}},
		"only static pods":                {static(0), static(time.Hour), static(time.Hour), api(0), api(neverListedTimeout - 1), apiOver(1)},
		"another kubelet, then API pods":  {api(0), {records: mine, newSocket: true, after: time.Hour}, api(0), api(neverListedTimeout - 1), apiOver(1)},
		"not bound, never listed": {{records: unbound, listed: "web-a cni-b"},
			{records: unbound, listed: "web-a cni-b", after: time.Hour}, {records: unbound, listed: "web-a cni-b", after: time.Hour}},
		"no name, never listed":             {{records: nameless, listed: "web-a cni-b"}, {records: nameless, listed: "web-a cni-b", after: time.Hour}},
		"not bound, and not listed with it": {{records: unbound, listed: "name-of-a"}, {records: unbound}, {records: unbound}},
		"not bound, listed with it":         {{records: unbound, listed: "job:A-0"}, {records: unbound}, {records: unbound, ended: true}},
		"not bound, then another pod has it": {{records: unbound, listed: "old:A-0"}, {records: unbound, listed: "old new:A-0"}, {records: unbound, listed: "new:A-0"},
			{records: unbound}, {records: unbound, ended: true}},
		"listed with it, then bound":      {{records: unbound, listed: "name-of-a:A-0"}, missing, ended},
		"bound without a name":            {{records: nameless, listed: "name-of-a"}, {records: nameless}, {records: nameless}},
		"another kubelet":                 {exists, {records: mine, newSocket: true}, missing, missing, exists, missing, ended},
		"another kubelet during the call": {exists, {records: mine, restart: true, wantErr: "restarted"}, missing, missing, exists, missing, ended},
		"no kubelet":                      {exists, {records: mine, noSocket: true, wantErr: "kubelet.sock"}, missing, missing},
		"a call fails":                    {exists, missing, {records: mine, err: errors.New("deadline"), wantErr: "deadline"}, ended},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			socket := filepath.Join(t.TempDir(), kubeletSocket)
			version := 0
			create := func() {
				version++
				testutil.NoError(t, os.WriteFile(socket, nil, 0o600), os.Chtimes(socket, at(version), at(version)))
			}
			create()
			var now step
			clock := at(0)
			tracker := PodTracker{missingTimeout: missingTimeout, now: func() time.Time { return clock }, list: func(context.Context) (containers []containerDevices, _ error) {
				if now.restart {
					create()
				}
				for _, word := range strings.Fields(now.listed) {
					name, replica, _ := strings.Cut(word, ":")
					pod, container, _ := strings.Cut(name, "/")
					containers = append(containers, containerDevices{pod: podName{"default", pod}, container: gocmp.Or(container, "main"), replicaIDs: map[string][]string{displayResource: {idOf(replica)}}})
				}
				return containers, now.err
			}}
			for i, step := range steps {
				now = step
				if step.after == 0 {
					step.after = missingTimeout
				}
				clock = clock.Add(step.after)
				if step.newSocket {
					create()
				}
				if step.noSocket {
					testutil.NoError(t, os.Remove(socket))
				}
				_, got, err := tracker.update(t.Context(), step.records, func() (localgrpc.FileIdentity, error) { return localgrpc.Identify(socket) })
				if step.noSocket {
					create()
				}
				if step.wantErr != "" {
					testutil.CheckError(t, fmt.Sprint("step ", i), err, step.wantErr)
					if got != nil {
						t.Errorf("step %d: %v", i, got)
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

// podLister is the kubelet's PodResources server.
type podLister struct {
	podresources.UnimplementedPodResourcesListerServer
	list *podresources.ListPodResourcesResponse
}

func (l *podLister) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	return l.list, nil
}

func TestListContainers(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(testutil.ShortDir(t), "kubelet.sock")
	if got, err := listContainers(t.Context(), socket); err == nil || got != nil {
		t.Errorf("no kubelet: %v, %v", got, err)
	}
	// Each NUMA node has an entry.
	devices := []*podresources.ContainerDevices{
		{ResourceName: "other/thing", DeviceIds: []string{"x"}},
		{ResourceName: displayResource, DeviceIds: []string{"a"}}, {ResourceName: displayResource, DeviceIds: []string{"b", "c"}},
	}
	grpctest.Serve(t, socket, &podresources.PodResourcesLister_ServiceDesc, &podLister{list: &podresources.ListPodResourcesResponse{
		PodResources: []*podresources.PodResources{
			{Namespace: "team", Name: "web", Containers: []*podresources.ContainerResources{{Name: "main", Devices: devices}, {Name: "side"}}},
			{Namespace: "team", Name: "empty"},
		},
	}})
	want := []containerDevices{
		{podName{"team", "web"}, "main", map[string][]string{"other/thing": {"x"}, displayResource: {"a", "b", "c"}}},
		{podName{"team", "web"}, "side", map[string][]string{}},
	}
	got, err := listContainers(t.Context(), socket)
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(containerDevices{}, podName{})); diff != "" || err != nil {
		t.Errorf("error %v, containers (-want +got):\n%s", err, diff)
	}
}
