package advertiser

import (
	"context"
	"errors"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"directx-nri/discovery"
)

// stream is the server's side of a ListAndWatch call.
type stream struct {
	grpc.ServerStream
	ctx  context.Context
	sent chan *v1beta1.ListAndWatchResponse
	err  error
}

func (s *stream) Context() context.Context { return s.ctx }

func (s *stream) Send(response *v1beta1.ListAndWatchResponse) error {
	s.sent <- response
	return s.err
}

func TestListAndWatchEnds(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken pipe")
	for _, test := range []struct {
		name string
		end  func(stopping chan struct{}, cancel context.CancelFunc, s *service)
		err  error
		want func(error) bool
	}{
		{name: "with its stream", end: func(_ chan struct{}, cancel context.CancelFunc, _ *service) { cancel() },
			want: func(err error) bool { return status.Code(err) == codes.Canceled }},
		{name: "with the server", end: func(stopping chan struct{}, _ context.CancelFunc, _ *service) { close(stopping) },
			want: func(err error) bool { return err == nil }},
		{name: "when it cannot send", err: broken, end: func(chan struct{}, context.CancelFunc, *service) {},
			want: func(err error) bool { return errors.Is(err, broken) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := testService(&memoryRecorder{}, displayGPU("A"))
			stopping := make(chan struct{})
			s.stopping = stopping
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			to := &stream{ctx: ctx, sent: make(chan *v1beta1.ListAndWatchResponse, 8), err: test.err}
			ended := make(chan error, 1)
			go func() { ended <- s.ListAndWatch(&v1beta1.Empty{}, to) }()
			<-to.sent
			test.end(stopping, cancel, s)
			if err := <-ended; !test.want(err) {
				t.Errorf("it returned %v", err)
			}
			if open, all := s.watchers.counts(); open != 0 || all != 1 {
				t.Errorf("%d streams open of %d, want none of one", open, all)
			}
		})
	}
}

func TestListAndWatchSendsChanges(t *testing.T) {
	t.Parallel()
	s := testService(&memoryRecorder{}, displayGPU("A"))
	stopping := make(chan struct{})
	s.stopping = stopping
	to := &stream{ctx: t.Context(), sent: make(chan *v1beta1.ListAndWatchResponse)}
	ended := make(chan error, 1)
	go func() { ended <- s.ListAndWatch(&v1beta1.Empty{}, to) }()
	<-to.sent
	for _, devices := range [][]discovery.Device{{displayGPU("A")}, {displayGPU("A")}, {displayGPU("A"), displayGPU("B")}} {
		pool, _ := s.pools.current()
		s.pools.publish(pool.merge(devices, t0))
	}
	// If equal lists were sent too, the next one would have one GPU.
	if got := len((<-to.sent).GetDevices()); got != 8 {
		t.Errorf("the next list has %d devices, want 8", got)
	}
	close(stopping)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
