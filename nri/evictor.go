package nri

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Evictor stops containers through the runtime's CRI socket. NRI has an
// eviction, and no runtime offers it outside the answer to a request, where
// nobody needs it.
type Evictor struct {
	// Socket is the path of the runtime's CRI socket.
	Socket string
	Log    logrus.FieldLogger
	// Retry is how long after a failure it tries again.
	Retry time.Duration
	// Observer is told of each container that was stopped. nil when nobody wants
	// to know.
	Observer Observer

	mu      sync.Mutex
	waiting map[string]string // container ID to pod
	wake    chan struct{}
}

// NewEvictor returns an Evictor that does nothing until it is run.
func NewEvictor(socket string, log logrus.FieldLogger) *Evictor {
	return &Evictor{
		Socket: socket, Log: log, Retry: 2 * time.Second,
		waiting: map[string]string{}, wake: make(chan struct{}, 1),
	}
}

// Stop has a container stopped as soon as can be, and returns at once.
func (e *Evictor) Stop(pod, containerID string) {
	e.mu.Lock()
	e.waiting[containerID] = pod
	e.mu.Unlock()
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// Run stops what it is told to until ctx ends. A container that cannot be
// stopped is tried again for as long as it exists.
func (e *Evictor) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-e.wake:
		}
		for !e.stopAll(ctx) {
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(e.Retry):
			}
		}
	}
}

// stopAll tries each waiting container once and tells whether none is left.
func (e *Evictor) stopAll(ctx context.Context) bool {
	e.mu.Lock()
	batch := make(map[string]string, len(e.waiting))
	for id, pod := range e.waiting {
		batch[id] = pod
	}
	e.mu.Unlock()
	if len(batch) == 0 {
		return true
	}
	connection, err := grpc.NewClient("unix:"+e.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		e.Log.WithError(err).Errorf("containers that run without their GPU cannot be stopped: is --cri-socket %s right?", e.Socket)
		return false
	}
	defer connection.Close()
	client := cri.NewRuntimeServiceClient(connection)
	for id, pod := range batch {
		log := e.Log.WithFields(logrus.Fields{"pod": pod, "id": id})
		if err := stopContainer(ctx, client, id); err != nil {
			log.WithError(err).Errorf("container runs without its GPU and cannot be stopped, trying again: is --cri-socket %s right?", e.Socket)
			continue
		}
		log.Warn("container that ran without its GPU is stopped")
		orNobody(e.Observer).Evicted()
		e.mu.Lock()
		delete(e.waiting, id)
		e.mu.Unlock()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.waiting) == 0
}

// stopContainer returns nil when the container is stopped or does not exist.
// It gets no time to end by itself: what it does now, it does without its GPU.
func stopContainer(ctx context.Context, client cri.RuntimeServiceClient, id string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	_, err := client.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: id, Timeout: 0})
	if err != nil && status.Code(err) != codes.NotFound {
		return fmt.Errorf("stop container: %w", err)
	}
	return nil
}
