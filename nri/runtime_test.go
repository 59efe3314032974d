//go:build unix

package nri

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"runtime/pprof"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/net/multiplex"
	"github.com/containerd/ttrpc"
	logtest "github.com/sirupsen/logrus/hooks/test"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/directx-nri/directx-nri/internal/cri"
	"github.com/directx-nri/directx-nri/internal/testutil"
)

// These tests run the plugin against NRI's own runtime side, the library that
// containerd has in it, over a real socket.

const testInterval = 5 * time.Millisecond

// startRuntime starts a runtime, which calls the functions before it synchronizes a plugin.
func startRuntime(t testing.TB, socket string, before ...func() error) *adaptation.Adaptation {
	t.Helper()
	synchronize := func(ctx context.Context, callback adaptation.SyncCB) error {
		for _, f := range before {
			if err := f(); err != nil {
				return err
			}
		}
		_, err := callback(ctx, []*api.PodSandbox{testPod()}, nil)
		return err
	}
	update := func(context.Context, []*api.ContainerUpdate) ([]*api.ContainerUpdate, error) { return nil, nil }
	runtime, err := adaptation.New("test", "v1.7.35", synchronize, update,
		adaptation.WithSocketPath(socket), adaptation.WithPluginPath(filepath.Dir(socket)+"/none"),
		adaptation.WithPluginConfigPath(filepath.Dir(socket)+"/none"))
	testutil.NoError(t, err)
	testutil.NoError(t, runtime.Start())
	t.Cleanup(runtime.Stop)
	return runtime
}

// await waits until the plugin is ready or, if want is false, until it is not.
func (p *Plugin) await(t testing.TB, want bool) {
	t.Helper()
	testutil.Eventually(t, fmt.Sprintf("ready: %t", want), func() bool { return want == (p.CheckReady(t.Context()) == nil) })
}

// startPlugin runs p until stop is called, which waits for its end.
func startPlugin(t testing.TB, socket string, p *Plugin) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	p.config.Socket, p.retryInterval = socket, testInterval
	var group sync.WaitGroup
	group.Go(func() {
		// Goroutines inherit labels.
		pprof.Do(ctx, pprof.Labels("plugin", socket), func(ctx context.Context) {
			p.Run(ctx)
		})
	})
	stop = func() {
		cancel()
		group.Wait()
		testutil.Eventually(t, "end of all goroutines", func() bool {
			var profile strings.Builder
			return pprof.Lookup("goroutine").WriteTo(&profile, 1) == nil && !strings.Contains(profile.String(), socket)
		})
	}
	t.Cleanup(stop)
	return stop
}

// TestConnectionLostInSynchronize: the runtime may have crashed. The plugin registers again
// only when that is safe, and not soon.
func TestConnectionLostInSynchronize(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	socket := filepath.Join(testutil.ShortDir(t), "nri.sock")
	var attempts, questions atomic.Int64
	startRuntime(t, socket, func() error {
		if attempts.Add(1) == 2 { // The first call is of its start.
			return errors.New("for a test") // It closes the connection.
		}
		return nil
	})
	b.plugin.readRuntime = func(context.Context) (cri.Config, error) {
		if questions.Add(1) == 2 {
			return cri.Config{}, errors.New("too large")
		}
		return handlers(), nil
	}
	began := time.Now()
	startPlugin(t, socket, b.plugin)
	for _, says := range []string{"crashed or closed the connection", "too large"} {
		testutil.Eventually(t, says, func() bool {
			err := b.plugin.CheckReady(t.Context())
			return err != nil && strings.Contains(err.Error(), says)
		})
		if n := attempts.Load(); n != 2 {
			t.Errorf("%s: %d attempts to register", says, n)
		}
	}
	b.plugin.await(t, true)
	if took := time.Since(began); took < crashRetries*testInterval {
		t.Errorf("it registered again after %s", took)
	}
}

// TestPluginWithoutRuntime: the cause is reported, and logged once.
func TestPluginWithoutRuntime(t *testing.T) {
	t.Parallel()
	p, socket := newBed(t).plugin, filepath.Join(testutil.ShortDir(t), "nri.sock")
	log, logged := logtest.NewNullLogger()
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel) // A deadline would be one of connections, too.
	p.config.Log, p.config.Socket, p.retryInterval = log, socket, time.Millisecond
	p.Run(ctx)
	err := p.CheckReady(t.Context())
	for _, says := range []string{errUnregistered.Error() + " on " + socket, "no such file", "containerd does not listen on it"} {
		testutil.CheckError(t, "CheckReady", err, says)
	}
	if n := len(logged.AllEntries()); n != 1 {
		t.Errorf("%d lines were logged", n)
	}
}

// TestConnectionLostInRegistration: a runtime accepts the registration and closes the connection
// before it configures the plugin: the stub's Start would hang then. Another one configures the
// plugin and crashes, before it has answered the registration.
func TestConnectionLostInRegistration(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	socket := filepath.Join(testutil.ShortDir(t), "nri.sock")
	listener, err := net.Listen("unix", socket)
	testutil.NoError(t, err)
	startPlugin(t, socket, b.plugin)
	for _, configures := range []bool{false, true} {
		conn, err := listener.Accept()
		testutil.NoError(t, err)
		register(t, conn, configures)
	}
	testutil.NoError(t, listener.Close())
	startRuntime(t, socket)
	b.plugin.await(t, true)
}

// register answers RegisterPlugin on conn, or calls Configure instead, and closes conn.
func register(t *testing.T, conn net.Conn, configures bool) {
	t.Helper()
	mux := multiplex.Multiplex(conn, multiplex.WithBlockedRead())
	listener, err := mux.Listen(multiplex.RuntimeServiceConn)
	testutil.NoError(t, err)
	server, err := ttrpc.NewServer()
	testutil.NoError(t, err)
	r := registration{t, make(chan struct{}), mux, configures}
	api.RegisterRuntimeService(server, r)
	var group sync.WaitGroup
	group.Go(func() { _ = server.Serve(context.Background(), listener) })
	mux.Unblock()
	select {
	case <-r.done:
	case <-time.After(20 * time.Second):
		t.Error("the plugin did not register")
	}
	testutil.NoError(t, server.Shutdown(context.Background()))
	mux.Close()
	group.Wait()
}

// registration is the runtime of [register].
type registration struct {
	t          *testing.T
	done       chan struct{} // closed by the first plugin that registers
	mux        multiplex.Mux
	configures bool
}

func (r registration) RegisterPlugin(ctx context.Context, _ *api.RegisterPluginRequest) (*api.Empty, error) {
	defer close(r.done)
	if !r.configures {
		return &api.Empty{}, nil
	}
	conn, err := r.mux.Open(multiplex.PluginServiceConn)
	if err == nil {
		var answer *api.ConfigureResponse
		answer, err = api.NewPluginClient(ttrpc.NewClient(conn)).Configure(ctx, &api.ConfigureRequest{})
		if err == nil && !answer.GetFailurePolicy().GetFailRequest() {
			r.t.Error("a container whose adjustment is lost would start")
		}
	}
	return nil, errors.Join(err, r.mux.Close())
}

func (r registration) UpdateContainers(context.Context, *api.UpdateContainersRequest) (*api.UpdateContainersResponse, error) {
	return nil, status.Error(codes.Unimplemented, "not in this test")
}

// TestPluginEndsWhileItRegisters: the runtime does not answer it.
func TestPluginEndsWhileItRegisters(t *testing.T) {
	t.Parallel()
	// NRI's runtime side (v0.12.5) has a data race when a plugin disconnects while it registers.
	silent := filepath.Join(testutil.ShortDir(t), "nri.sock")
	listener, err := net.Listen("unix", silent)
	testutil.NoError(t, err)
	defer listener.Close()
	stop := startPlugin(t, silent, newBed(t).plugin)
	conn, err := listener.Accept()
	testutil.NoError(t, err)
	defer conn.Close()
	_, err = conn.Read(make([]byte, 1))
	testutil.NoError(t, err)
	began := time.Now()
	stop()
	if took := time.Since(began); took > 4*time.Second { // The stub waits 5 s for the answer.
		t.Errorf("it ended after %s", took)
	}
}

// TestPluginAnswersBeforeItEnds: a hook that is at work when the program ends
// still answers, or the container's creation would fail without a reason.
func TestPluginAnswersBeforeItEnds(t *testing.T) {
	t.Parallel()
	b := newBed(t, gpu("0"))
	calls, block := make(chan struct{}, 1), make(chan struct{})
	b.plugin.config.Files = hangingFiles{calls: calls, block: block}
	socket := filepath.Join(testutil.ShortDir(t), "nri.sock")
	runtime := startRuntime(t, socket)
	stop := startPlugin(t, socket, b.plugin)
	b.plugin.await(t, true)
	runtime.BlockPluginSync().Unblock()

	container := testContainer(displayKey + "=" + b.allocate(t, display, "0"))
	adjusted := make(chan *api.ContainerAdjustment, 1)
	go func() {
		response, err := runtime.CreateContainer(context.Background(), &api.CreateContainerRequest{Pod: testPod(), Container: container})
		if err != nil {
			t.Errorf("CreateContainer: %v", err)
		}
		adjusted <- response.GetAdjust()
	}()
	<-calls
	go stop()
	b.plugin.await(t, false)
	time.Sleep(2 * answerInterval)
	close(block)
	if got := devicePaths(<-adjusted); len(got) != 1 {
		t.Errorf("devices %v, want the allocated one", got)
	}
}
