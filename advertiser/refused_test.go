package advertiser

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// TestRefusals: a refused GetPreferredAllocation ends the pod's admission, and no call of
// Allocate follows.
func TestRefusals(t *testing.T) {
	t.Parallel()
	missing := errors.New("the plugin is missing")
	for name, test := range map[string]struct {
		call      func(context.Context, *service) error
		wantCall  string
		wantLine  string
		wantParts []string
	}{
		"preferred allocation": {
			call: func(ctx context.Context, s *service) error {
				_, err := s.GetPreferredAllocation(ctx, &v1beta1.PreferredAllocationRequest{ContainerRequests: []*v1beta1.ContainerPreferredAllocationRequest{
					{AvailableDeviceIDs: []string{"A::0"}, AllocationSize: 2},
				}})
				return err
			},
			wantCall: "failed " + ResourceDisplay + ": invalid_request", wantLine: "Allocation refused",
			wantParts: []string{"reason=invalid_request", "2 replicas of " + ResourceDisplay + " requested and 1 available"},
		},
		"allocation": {
			call: func(ctx context.Context, s *service) error {
				_, err := s.Allocate(ctx, allocateRequest([]string{"B::0"}))
				return err
			},
			wantCall: "failed " + ResourceDisplay + ": invalid_request", wantLine: "Allocation refused",
			wantParts: []string{"reason=invalid_request", "B::0"},
		},
		"start": {
			call: func(ctx context.Context, s *service) error {
				_, err := s.PreStartContainer(ctx, &v1beta1.PreStartContainerRequest{DevicesIds: []string{"A::0"}})
				return err
			},
			wantCall: "checked " + ResourceDisplay + ": false", wantLine: "Container start refused",
			wantParts: []string{"A::0", missing.Error()},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := testService(&memoryRecorder{}, displayGPU("A"))
			observer, lines := &callLog{}, &lineLog{}
			s.config.Observer, s.log = observer, lines.logger()
			s.config.Ready = func(context.Context, Start) error { return missing }
			if err := test.call(t.Context(), s); err == nil {
				t.Fatal("no error")
			}
			if diff := cmp.Diff([]string{test.wantCall}, observer.all()); diff != "" {
				t.Errorf("calls (-want +got):\n%s", diff)
			}
			got := lines.with(test.wantLine)
			if len(got) != 1 {
				t.Fatalf("%d lines of log: %q", len(got), got)
			}
			for _, part := range test.wantParts {
				if !strings.Contains(got[0], part) {
					t.Errorf("no %q in %s", part, got[0])
				}
			}
		})
	}
}
