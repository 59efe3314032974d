package deviceplugin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/internal/testutil/allocationtest"
)

func allocateRequest(containers ...[]string) *v1beta1.AllocateRequest {
	request := &v1beta1.AllocateRequest{}
	for _, ids := range containers {
		request.ContainerRequests = append(request.ContainerRequests, &v1beta1.ContainerAllocateRequest{DevicesIds: ids})
	}
	return request
}

// testServer returns a server that is not run. Its GPU A has 4 replicas.
func testServer(config Config) *server {
	timing := defaultTiming()
	return newServer(config, timing, newAllocateGuard(config, timing), poolOf(4, displayGPU("A")))
}

// TestServerCalls makes one call each of a server that has one GPU. A refused request leaves
// no record, is logged and counted.
func TestServerCalls(t *testing.T) {
	t.Parallel()
	type call func(context.Context, *server) error
	allocate := func(containers ...[]string) call {
		return func(ctx context.Context, s *server) error {
			_, err := s.Allocate(ctx, allocateRequest(containers...))
			return err
		}
	}
	prefer := func(ctx context.Context, s *server) error {
		_, err := s.GetPreferredAllocation(ctx, &v1beta1.PreferredAllocationRequest{ContainerRequests: []*v1beta1.ContainerPreferredAllocationRequest{
			{AvailableDeviceIDs: []string{"A::0"}, AllocationSize: 2},
		}})
		return err
	}
	start := func(ctx context.Context, s *server) error {
		_, err := s.PreStartContainer(ctx, &v1beta1.PreStartContainerRequest{DevicesIds: []string{"A::0"}})
		return err
	}
	type response = v1beta1.ContainerAllocateResponse
	fails := func(err error) func(func()) KubeletAnswer {
		return func(func()) KubeletAnswer {
			return func(context.Context, string, []allocation.Replica) (*response, error) { return nil, err }
		}
	}
	cancels := func(cancel func()) KubeletAnswer {
		return func(context.Context, string, []allocation.Replica) (*response, error) {
			cancel()
			return &response{}, nil
		}
	}
	failed := func(reason string) string {
		return `allocation_failures_total{reason="` + reason + `",resource="directx.microsoft.com/display"} 1`
	}
	for name, test := range map[string]struct {
		call      call
		noRecords bool // their directory is removed
		inject    func(cancel func()) KubeletAnswer
		ready     error
		code      codes.Code
		want      string // in the error and in the log
		metric    string
	}{
		"no container":                 {call: allocate()},
		"two containers":               {call: allocate([]string{"A::0"}, []string{"A::0"}), metric: "allocations_total{"},
		"bad ID in the last container": {call: allocate([]string{"A::0"}, []string{"A::1", "X::0"}), code: codes.InvalidArgument, want: "X::0", metric: failed("invalid_request")},
		"container without ID":         {call: allocate([]string{"A::0"}, nil), code: codes.InvalidArgument, want: "without replicas", metric: failed("invalid_request")},
		"no record can be written":     {call: allocate([]string{"A::0"}), noRecords: true, code: codes.Internal, want: "no such file", metric: failed("other")},
		"canceled":                     {call: allocate([]string{"A::0"}), inject: cancels, code: codes.Canceled, want: "canceled", metric: failed("canceled")},
		"canceled after one of two":    {call: allocate([]string{"A::0"}, []string{"A::1"}), inject: cancels, code: codes.Canceled, want: "canceled", metric: failed("canceled")},
		"injection, the request's fault": {call: allocate([]string{"A::0"}), inject: fails(fmt.Errorf("two GPUs: %w", ErrNotExpressible)),
			code: codes.InvalidArgument, want: "two GPUs", metric: failed("not_expressible")},
		"injection, the node's fault": {call: allocate([]string{"A::0"}), inject: fails(errors.New("no driver")),
			code: codes.Internal, want: "no driver", metric: failed("gpu")},
		// This ends the pod's admission, and no call of Allocate follows.
		"preferred allocation": {call: prefer, code: codes.InvalidArgument, want: "2 replicas of directx.microsoft.com/display requested and 1 available", metric: failed("invalid_request")},
		"start":                {call: start, metric: `start_check_duration_seconds_count{resource="directx.microsoft.com/display",result="passed"} 1`},
		"start refused": {call: start, ready: errors.New("the plugin is missing"), code: codes.FailedPrecondition, want: "the plugin is missing",
			metric: `start_check_duration_seconds_count{resource="directx.microsoft.com/display",result="refused"} 1`},
		"allocation while not ready": {call: allocate([]string{"A::0"}), ready: errors.New("the plugin is missing"), metric: "allocations_total{"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			logger, lines := newLog()
			config, records := testConfig(t, "", nil), filepath.Join(t.TempDir(), "records")
			config.Recorder, config.Log = allocationtest.Open(t, records), logger
			if test.inject != nil {
				config.KubeletAnswer = test.inject(cancel)
			}
			if test.noRecords {
				_ = os.RemoveAll(records)
			}
			config.CheckStart = func(ctx context.Context) error {
				if deadline, ok := ctx.Deadline(); !ok || time.Until(deadline) > readyTimeout {
					t.Errorf("deadline %v, %t", deadline, ok)
				}
				return test.ready
			}
			s := testServer(config)
			err := test.call(ctx, s)
			testutil.CheckError(t, "call", err, test.want)
			if status.Code(err) != test.code {
				t.Errorf("code %s, want %s", status.Code(err), test.code)
			}
			if left := config.Recorder.Refresh(); err != nil && len(left) != 0 {
				t.Errorf("records are left: %v", left)
			}
			if err != nil && (len(lines.with(" refused")) != 1 || len(lines.with(test.want)) != 1) {
				t.Errorf("logged %q, want one line with the refusal and %q", lines.with(""), test.want)
			}
			if !strings.Contains(scrape(config.Metrics), test.metric) {
				t.Errorf("no %s in the metrics", test.metric)
			}
		})
	}
}

// TestAnswerOnEachSystem: the interlock and the options are those of the node's system, and of its kubelet.
func TestAnswerOnEachSystem(t *testing.T) {
	t.Parallel()
	const id = allocation.ID("0123456789abcdef0123456789abcdef")
	for os, test := range map[string]struct {
		atCreation bool
		devices    []*v1beta1.DeviceSpec
		mounts     []*v1beta1.Mount
	}{
		"linux":   {mounts: []*v1beta1.Mount{{HostPath: "/dev/null", ContainerPath: "/proc/directx-nri-did-not-adjust-this-container", ReadOnly: true}}},
		"windows": {atCreation: true, devices: []*v1beta1.DeviceSpec{{HostPath: "directx-nri://not-started-through-the-runtime-shim"}}},
	} {
		config := testConfig(t, "", nil)
		config.NodeOS = os
		if test.atCreation {
			config.CheckStart = nil
		}
		s := testServer(config)
		want := &v1beta1.ContainerAllocateResponse{
			Annotations: map[string]string{"directx.microsoft.com/allocation.display": string(id)},
			Devices:     test.devices, Mounts: test.mounts,
		}
		got, err := s.answer(t.Context(), id, nil)
		if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" || err != nil {
			t.Errorf("%s: error %v (-want +got):\n%s", os, err, diff)
		}
		if s.options().GetPreStartRequired() == test.atCreation {
			t.Errorf("%s: PreStartContainer is called: %t", os, test.atCreation)
		}
		preferred, err := s.GetPreferredAllocation(t.Context(), &v1beta1.PreferredAllocationRequest{ContainerRequests: []*v1beta1.ContainerPreferredAllocationRequest{
			{AvailableDeviceIDs: []string{"A::3", "A::1"}, AllocationSize: 1}, {AvailableDeviceIDs: []string{"A::2"}, AllocationSize: 1},
		}})
		testutil.NoError(t, err)
		var ids [][]string
		for _, response := range preferred.GetContainerResponses() {
			ids = append(ids, response.GetDeviceIDs())
		}
		if diff := cmp.Diff([][]string{{"A::1"}, {"A::2"}}, ids); diff != "" {
			t.Errorf("%s: preferred (-want +got):\n%s", os, diff)
		}
	}
}

// TestAllocationsAtOnce: a kubelet that allocates at creation may crash if one of several
// allocations that begin at once succeeds.
func TestAllocationsAtOnce(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		admission bool  // the kubelet allocates at admission
		begin     []int // milliseconds
		granted   []bool
		prefer    int  // when a preferred allocation is requested, 0 for never
		refused   bool // no allocation can satisfy that
	}{
		"one":                                {begin: []int{0}, granted: []bool{true}},
		"one before another's preferred one": {begin: []int{0}, granted: []bool{false}, prefer: 50},
		"one after a preferred one":          {begin: []int{51}, granted: []bool{true}, prefer: 50},
		"one after a refused preferred one":  {begin: []int{51}, granted: []bool{true}, prefer: 50, refused: true},
		"one before a refused preferred one": {begin: []int{0}, granted: []bool{false}, prefer: 50, refused: true},
		"two at once":                        {begin: []int{0, 0}, granted: []bool{false, false}},
		"one after another began":            {begin: []int{0, 99}, granted: []bool{false, false}},
		"one after the other":                {begin: []int{0, 101}, granted: []bool{true, true}},
		"a third one later":                  {begin: []int{0, 0, 202}, granted: []bool{false, false, true}},
		"one after two have failed":          {begin: []int{0, 0, 101}, granted: []bool{false, false, true}},
		"one after the other, at admission":  {admission: true, begin: []int{0, 1}, granted: []bool{true, true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				config := testConfig(t, "", nil)
				if !test.admission {
					config.CheckStart = nil
				}
				servers := []*server{testServer(config), testServer(config)} // of two resources
				servers[1].guard = servers[0].guard
				granted := make([]bool, len(test.begin))
				var group sync.WaitGroup
				if test.prefer > 0 {
					group.Go(func() {
						time.Sleep(time.Duration(test.prefer) * time.Millisecond)
						request := &v1beta1.PreferredAllocationRequest{}
						if test.refused {
							request.ContainerRequests = []*v1beta1.ContainerPreferredAllocationRequest{{AllocationSize: 9}}
						}
						_, _ = servers[1].GetPreferredAllocation(t.Context(), request)
					})
				}
				for i, begin := range test.begin {
					group.Go(func() {
						time.Sleep(time.Duration(begin) * time.Millisecond)
						_, err := servers[i%2].Allocate(t.Context(), allocateRequest([]string{fmt.Sprintf("A::%d", i)}))
						granted[i] = err == nil
						if err != nil && status.Code(err) != codes.Aborted {
							t.Error(err)
						}
					})
				}
				group.Wait()
				if !slices.Equal(granted, test.granted) {
					t.Errorf("granted %v, want %v", granted, test.granted)
				}
				if n := len(config.Recorder.Refresh()); n != strings.Count(fmt.Sprint(granted), "true") {
					t.Errorf("%d records, granted %v", n, granted)
				}
			})
		})
	}
}

// BenchmarkSocket measures calls over the real socket of a running advertiser,
// as the kubelet makes them.
func BenchmarkSocket(b *testing.B) {
	for _, size := range []struct{ gpus, replicas int }{{2, 4}, {64, 256}} {
		_, ids := bigPool(size.gpus, size.replicas)
		name := fmt.Sprintf("%dx%d", size.gpus, size.replicas)
		b.Run("Allocate/"+name, func(b *testing.B) {
			c, n := benchClient(b, size.gpus, size.replicas), 0
			for b.Loop() {
				if _, err := c.Allocate(b.Context(), allocateRequest([]string{ids[n%len(ids)]})); err != nil {
					b.Fatal(err)
				}
				n++
			}
		})
		b.Run("GetPreferredAllocation/"+name, func(b *testing.B) {
			c := benchClient(b, size.gpus, size.replicas)
			request := &v1beta1.PreferredAllocationRequest{ContainerRequests: []*v1beta1.ContainerPreferredAllocationRequest{{AvailableDeviceIDs: ids, AllocationSize: 2}}}
			for b.Loop() {
				if _, err := c.GetPreferredAllocation(b.Context(), request); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func benchClient(b *testing.B, gpus, replicas int) v1beta1.DevicePluginClient {
	b.Helper()
	dir := testutil.ShortDir(b)
	k := startKubelet(b, dir)
	config := testConfig(b, dir, newSource(bigNode(gpus)...))
	config.Policy.Resources = twoKinds(replicas)
	runWith(b, config, defaultTiming())
	return k.client(displayResource)
}
