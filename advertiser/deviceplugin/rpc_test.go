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
		request.ContainerRequests = append(request.ContainerRequests, &v1beta1.ContainerAllocateRequest{DevicesIds: idsOf(ids)})
	}
	return request
}

// testServer returns a server that is not run. Its GPU A has 4 replicas.
func testServer(config Config) *server {
	timing := defaultTiming()
	return newServer(config, timing, newAllocateGuard(config, timing), poolOf(4, displayGPU("A")))
}

// TestHungDisk: the kubelet waits for an allocation without a limit, and on Linux does nothing else meanwhile.
func TestHungDisk(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		config, hang := testConfig(t, "", nil), make(chan struct{})
		defer close(hang)
		config.Inject = func(context.Context, string, []allocation.Replica) (*v1beta1.ContainerAllocateResponse, error) {
			<-hang
			return nil, errors.New("the test ends")
		}
		_, err := testServer(config).Allocate(t.Context(), allocateRequest([]string{"A-0"}))
		testutil.CheckError(t, "allocation", err, "does not respond")
	})
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
			{AvailableDeviceIDs: idsOf([]string{"A-0"}), AllocationSize: 2},
		}})
		return err
	}
	start := func(ctx context.Context, s *server) error {
		_, err := s.PreStartContainer(ctx, &v1beta1.PreStartContainerRequest{DevicesIds: []string{"A-0"}})
		return err
	}
	failed := func(reason string) string {
		return `allocation_failures_total{reason="` + reason + `",resource="directx.microsoft.com/display"} 1`
	}
	for name, test := range map[string]struct {
		call      call
		noRecords bool // their directory is removed
		injectErr error
		canceled  bool
		ready     error
		code      codes.Code
		want      string // in the error and in the log
		metric    string
	}{
		"no container":                 {call: allocate()},
		"two containers":               {call: allocate([]string{"A-0"}, []string{"A-0"}), metric: "allocations_total{"},
		"bad ID in the last container": {call: allocate([]string{"A-0"}, []string{"A-1", "X-0"}), code: codes.InvalidArgument, want: idOf("X-0"), metric: failed("invalid_request")},
		"container without ID":         {call: allocate([]string{"A-0"}, nil), code: codes.InvalidArgument, want: "without replicas", metric: failed("invalid_request")},
		"no record can be written":     {call: allocate([]string{"A-0"}), noRecords: true, code: codes.Internal, want: "no such file", metric: failed("other")},
		"canceled":                     {call: allocate([]string{"A-0"}), canceled: true, code: codes.Canceled, want: "canceled", metric: failed("canceled")},
		"injection, the request's fault": {call: allocate([]string{"A-0"}), injectErr: fmt.Errorf("two GPUs: %w", ErrInvalidRequest),
			code: codes.InvalidArgument, want: "two GPUs", metric: failed("invalid_request")},
		"injection, the node's fault": {call: allocate([]string{"A-0"}), injectErr: errors.New("no driver"),
			code: codes.Internal, want: "no driver", metric: failed("gpu")},
		// This ends the pod's admission, and no call of Allocate follows.
		"preferred allocation": {call: prefer, code: codes.InvalidArgument, want: "2 replicas of directx.microsoft.com/display requested", metric: failed("invalid_request")},
		"start":                {call: start, metric: `start_check_duration_seconds_count{resource="directx.microsoft.com/display",result="passed"} 1`},
		"start refused": {call: start, ready: errors.New("the plugin is missing"), code: codes.FailedPrecondition, want: "the plugin is missing",
			metric: `start_check_duration_seconds_count{resource="directx.microsoft.com/display",result="refused"} 1`},
		"allocation while not ready": {call: allocate([]string{"A-0"}), ready: errors.New("the plugin is missing"), metric: "allocations_total{"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			logger, lines := newLog()
			config, records := testConfig(t, "", nil), filepath.Join(t.TempDir(), "records")
			config.Recorder, config.Log = allocationtest.Open(t, records), logger
			if test.injectErr != nil {
				config.Inject = func(context.Context, string, []allocation.Replica) (*v1beta1.ContainerAllocateResponse, error) {
					return nil, test.injectErr
				}
			}
			if test.canceled {
				cancel()
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
		"linux":   {mounts: []*v1beta1.Mount{{HostPath: "/dev/null", ContainerPath: allocation.InterlockMount, ReadOnly: true}}},
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
		if diff := cmp.Diff(want, newResponse(displayResource, os, id), protocmp.Transform()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", os, diff)
		}
		if s.options().GetPreStartRequired() == test.atCreation {
			t.Errorf("%s: PreStartContainer is called: %t", os, test.atCreation)
		}
		preferred, err := s.GetPreferredAllocation(t.Context(), &v1beta1.PreferredAllocationRequest{ContainerRequests: []*v1beta1.ContainerPreferredAllocationRequest{
			{AvailableDeviceIDs: idsOf([]string{"A-3", "A-1"}), AllocationSize: 1}, {AvailableDeviceIDs: idsOf([]string{"A-2"}), AllocationSize: 1},
		}})
		testutil.NoError(t, err)
		var ids [][]string
		for _, response := range preferred.GetContainerResponses() {
			ids = append(ids, response.GetDeviceIDs())
		}
		if diff := cmp.Diff([][]string{{idOf("A-1")}, {idOf("A-2")}}, ids); diff != "" {
			t.Errorf("%s: preferred (-want +got):\n%s", os, diff)
		}
	}
}

// TestAllocationsAtOnce: a kubelet that allocates at creation may crash if one of several allocations that
// begin at once succeeds. Failures are returned one at a time, so that the kubelet's retries do not overlap.
func TestAllocationsAtOnce(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		admission bool  // the kubelet allocates at admission
		begin     []int // when an allocation begins, in milliseconds
		prefer    int   // when a preferred allocation is requested, 0 for never
		granted   []bool
		ended     []int // when the allocations end, sorted
	}{
		"one":                                {begin: []int{0}, granted: []bool{true}, ended: []int{250}},
		"one before another's preferred one": {begin: []int{0}, prefer: 50, granted: []bool{false}, ended: []int{1750}},
		"one after a preferred one":          {begin: []int{51}, prefer: 50, granted: []bool{true}, ended: []int{301}},
		"two at once":                        {begin: []int{0, 0}, granted: []bool{false, false}, ended: []int{1750, 3250}},
		"one after another began":            {begin: []int{0, 249}, granted: []bool{false, false}, ended: []int{1750, 3250}},
		"one after the other":                {begin: []int{0, 251}, granted: []bool{true, true}, ended: []int{250, 501}},
		"one while two wait to fail":         {begin: []int{0, 0, 500}, granted: []bool{false, false, true}, ended: []int{750, 1750, 3250}},
		"one during a failure":               {begin: []int{0, 0, 1550}, granted: []bool{false, false, false}, ended: []int{1750, 3250, 4750}},
		"one after the other, at admission":  {admission: true, begin: []int{0, 1}, granted: []bool{true, true}, ended: []int{0, 1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				config := testConfig(t, "", nil)
				if !test.admission {
					config.AllocatesAtCreation = true
				}
				servers := []*server{testServer(config), testServer(config)} // of two resources
				servers[1].guard = servers[0].guard
				began := time.Now()
				granted, ended := make([]bool, len(test.begin)), make([]int, len(test.begin))
				var group sync.WaitGroup
				if test.prefer > 0 {
					group.Go(func() {
						time.Sleep(time.Duration(test.prefer) * time.Millisecond)
						_, _ = servers[1].GetPreferredAllocation(t.Context(), &v1beta1.PreferredAllocationRequest{})
					})
				}
				for i, begin := range test.begin {
					group.Go(func() {
						time.Sleep(time.Duration(begin) * time.Millisecond)
						_, err := servers[i%2].Allocate(t.Context(), allocateRequest([]string{fmt.Sprintf("A-%d", i)}))
						granted[i], ended[i] = err == nil, int(time.Since(began).Milliseconds())
						if err != nil && status.Code(err) != codes.Aborted {
							t.Error(err)
						}
					})
				}
				group.Wait()
				slices.Sort(ended)
				if !slices.Equal(granted, test.granted) || !slices.Equal(ended, test.ended) {
					t.Errorf("granted %v and ended at %v, want %v and %v", granted, ended, test.granted, test.ended)
				}
				if n := len(config.Recorder.Refresh()); n != strings.Count(fmt.Sprint(granted), "true") {
					t.Errorf("%d records, granted %v", n, granted)
				}
			})
		})
	}
}
