package pnp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"directx-nri/advertiser"
	"directx-nri/internal/allocation"
	"directx-nri/internal/config"
	"directx-nri/internal/testutil"
)

// kubelet takes registrations.
type kubelet struct {
	v1beta1.UnimplementedRegistrationServer
	registered chan *v1beta1.RegisterRequest
}

func (k *kubelet) Register(_ context.Context, request *v1beta1.RegisterRequest) (*v1beta1.Empty, error) {
	k.registered <- request
	return &v1beta1.Empty{}, nil
}

// advertised runs an advertiser of system's GPUs, and returns what the kubelet is
// told of displays, list by list: the healthy ones' instance IDs.
func advertised(t *testing.T, system *fakeSystem) <-chan string {
	t.Helper()
	folder := testutil.ShortDir(t)
	recorder, err := allocation.OpenRecorder(t.Context(), filepath.Join(folder, "allocations"), testutil.Quiet())
	if err != nil {
		t.Fatal(err)
	}
	a, err := advertiser.New(advertiser.Config{
		Source: Open(system, testutil.Quiet()), Recorder: recorder, KubeletDir: folder, Log: testutil.Quiet(),
		Resources: []config.Resource{{Name: advertiser.ResourceDisplay, Replicas: 1, Policy: config.Distributed}},
		Ready:     func(context.Context, advertiser.Start) error { return nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", filepath.Join(folder, "kubelet.sock"))
	if err != nil {
		t.Fatal(err)
	}
	k := &kubelet{registered: make(chan *v1beta1.RegisterRequest, 16)}
	server := grpc.NewServer()
	v1beta1.RegisterRegistrationServer(server, k)
	served, ran := make(chan error, 1), make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	go func() { served <- server.Serve(listener) }()
	go func() { ran <- a.Run(ctx) }()

	var request *v1beta1.RegisterRequest
	for request = <-k.registered; request.ResourceName != advertiser.ResourceDisplay; request = <-k.registered {
		continue
	}
	connection, err := grpc.NewClient("unix:"+filepath.Join(folder, request.Endpoint), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	stream, err := v1beta1.NewDevicePluginClient(connection).ListAndWatch(ctx, &v1beta1.Empty{})
	if err != nil {
		t.Fatal(err)
	}
	lists := make(chan string, 64)
	streamed := make(chan struct{})
	go func() {
		defer close(streamed)
		for {
			list, err := stream.Recv()
			if err != nil {
				return
			}
			var healthy []string
			for _, d := range list.Devices {
				if d.Health == v1beta1.Healthy {
					healthy = append(healthy, d.ID)
				}
			}
			lists <- strings.Join(healthy, " ")
		}
	}()
	t.Cleanup(func() {
		cancel()
		server.Stop()
		<-streamed
		connection.Close()
		if err := errors.Join(<-ran, recorder.Close(), <-served); err != nil {
			t.Error(err)
		}
	})
	return lists
}

// A change of the devices reaches the kubelet's stream, with and without Windows'
// notifications. How long that took is in the test's log.
func TestChangesReachTheKubelet(t *testing.T) {
	t.Parallel()
	for name, notifyErr := range map[string]error{"notified": nil, "polled": fmt.Errorf("CM_Register_Notification: %w", errors.ErrUnsupported)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			system := &fakeSystem{snapshot: node(1), notifyErr: notifyErr}
			lists := advertised(t, system)
			replica := func(n int) string { return t4(n).InstanceID + "::0" }
			wait := func(step, want string) {
				t.Helper()
				began, deadline := time.Now(), time.After(20*time.Second)
				for {
					select {
					case got := <-lists:
						if got == want {
							t.Logf("%s: told after %s", step, time.Since(began).Round(time.Millisecond))
							return
						}
					case <-deadline:
						t.Fatalf("%s: the kubelet was not told of %q", step, want)
					}
				}
			}
			wait("at the start", replica(0))
			for _, step := range []struct {
				name, want string
				edit       func(*Snapshot)
			}{
				{"a GPU comes", replica(0) + " " + replica(1), func(s *Snapshot) { *s = node(2) }},
				{"it fails", replica(0), func(s *Snapshot) { s.Devices[3].Problem = 43 }},
				{"it recovers", replica(0) + " " + replica(1), func(s *Snapshot) { s.Devices[3].Problem = 0 }},
				{"it goes", replica(0), func(s *Snapshot) { *s = node(1) }},
			} {
				system.change(notifyErr == nil, step.edit)
				wait(step.name, step.want)
			}
		})
	}
}
