//go:build unix

package criquery

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/internal/testutil/grpctest"
)

// service has one container and one sandbox.
type service struct {
	runtime.UnimplementedRuntimeServiceServer
	container, pod map[string]string
	trailer        string        // a trailer in addition to grpc-go's own
	hang           chan struct{} // closed when ContainerStatus may answer, nil if it always may
}

func (s *service) ContainerStatus(ctx context.Context, r *runtime.ContainerStatusRequest) (*runtime.ContainerStatusResponse, error) {
	if s.hang != nil {
		<-s.hang
	}
	if s.trailer != "" {
		_ = grpc.SetTrailer(ctx, metadata.Pairs("x", s.trailer))
	}
	if r.GetContainerId() != "c" || r.GetVerbose() {
		return nil, status.Error(codes.NotFound, "no container \"x\":\n100%")
	}
	return &runtime.ContainerStatusResponse{
		Status: &runtime.ContainerStatus{Id: "c", Labels: map[string]string{"label": "x"}, Annotations: s.container}, Info: map[string]string{"info": "{}"},
	}, nil
}

func (s *service) PodSandboxStatus(_ context.Context, r *runtime.PodSandboxStatusRequest) (*runtime.PodSandboxStatusResponse, error) {
	if r.GetPodSandboxId() != "s" {
		return nil, status.Error(codes.NotFound, "no sandbox")
	}
	return &runtime.PodSandboxStatusResponse{Status: &runtime.PodSandboxStatus{Id: "s", Labels: map[string]string{"label": "x"}, Annotations: s.pod}}, nil
}

func serve(t testing.TB, s *service) (address string) {
	t.Helper()
	address = filepath.Join(testutil.ShortDir(t), "s")
	grpctest.Serve(t, address, &runtime.RuntimeService_ServiceDesc, s)
	return address
}

// TestQuery asks grpc-go's server, as containerd's is.
func TestQuery(t *testing.T) {
	t.Parallel()
	large := map[string]string{}
	for i := range 64 {
		large[fmt.Sprint("key", i)] = strings.Repeat("x", 128<<10) // 8 MiB: more than any window at the start.
	}
	for name, s := range map[string]*service{
		"none":           {container: map[string]string{}, pod: map[string]string{}},
		"some":           {container: map[string]string{"a": "1", "b": ""}, pod: map[string]string{"": "2", "ä": "\n"}},
		"large":          {container: large, pod: large},
		"large trailers": {container: map[string]string{"a": "1"}, pod: map[string]string{}, trailer: strings.Repeat("y", 64<<10)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			container, pod, err := Query(t.Context(), "unix://"+serve(t, s), "c", "s")
			testutil.NoError(t, err)
			if diff := cmp.Diff([]map[string]string{s.container, s.pod}, []map[string]string{container, pod}); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestQueryFails(t *testing.T) {
	t.Parallel()
	address := serve(t, &service{})
	for want, id := range map[string][2]string{`gRPC status 5: no container "x":` + "\n100%": {"x", "s"}, "gRPC status 5: no sandbox": {"c", "x"}} {
		_, _, err := Query(t.Context(), address, id[0], id[1])
		testutil.CheckError(t, want, err, want)
	}
	_, _, err := Query(t.Context(), address+"none", "c", "s")
	testutil.CheckError(t, "no containerd", err, "no such file")
}

func TestNoAnswer(t *testing.T) {
	t.Parallel()
	s := &service{hang: make(chan struct{})}
	address := serve(t, s)
	defer close(s.hang)
	for name, newContext := range map[string]func() (context.Context, context.CancelFunc){
		"deadline": func() (context.Context, context.CancelFunc) {
			return context.WithTimeout(t.Context(), 50*time.Millisecond)
		},
		"canceled": func() (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(50*time.Millisecond, cancel)
			return ctx, cancel
		},
	} {
		ctx, cancel := newContext()
		_, _, err := Query(ctx, address, "c", "s")
		cancel()
		if !errors.Is(err, errNoAnswer) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestServerFrames has servers that do what grpc-go's does seldom.
func TestServerFrames(t *testing.T) {
	t.Parallel()
	headers := func(fields ...hpack.HeaderField) []byte {
		var block bytes.Buffer
		encoder := hpack.NewEncoder(&block)
		for _, f := range fields {
			_ = encoder.WriteField(f)
		}
		return block.Bytes()
	}
	ok, trailers := headers(hpack.HeaderField{Name: ":status", Value: "200"}), headers(hpack.HeaderField{Name: "grpc-status", Value: "0"})
	empty := []byte{0, 0, 0, 0, 0}
	answer := func(f *http2.Framer, id uint32) {
		_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: ok, EndHeaders: true, PadLength: 7, Priority: http2.PriorityParam{StreamDep: 9, Weight: 3}})
		_ = f.WriteDataPadded(id, false, empty, make([]byte, 9))
		_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: trailers[:1], EndStream: true})
		_ = f.WriteContinuation(id, true, trailers[1:])
	}
	for name, test := range map[string]struct {
		send func(f *http2.Framer)
		want string
	}{
		"padding, continuation, ping, unknown frame": {func(f *http2.Framer) {
			_ = f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1})
			_ = f.WritePing(false, [8]byte{1, 2, 3})
			_ = f.WriteRawFrame(77, 0, 0, []byte("x"))
			answer(f, 3)
			answer(f, 1)
		}, ""},
		"reset after the answer, shutdown that waits for both": {func(f *http2.Framer) {
			_ = f.WriteSettings()
			_ = f.WritePing(false, [8]byte{1, 2, 3})
			answer(f, 1)
			_ = f.WriteRSTStream(1, http2.ErrCodeNo)
			_ = f.WriteGoAway(3, http2.ErrCodeNo, nil)
			answer(f, 3)
		}, ""},
		"another status": {func(f *http2.Framer) {
			_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: headers(hpack.HeaderField{Name: ":status", Value: "503"}), EndHeaders: true})
		}, "HTTP status 503"},
		"reset":          {func(f *http2.Framer) { _ = f.WriteRSTStream(1, http2.ErrCodeCancel) }, "canceled the request"},
		"end":            {func(f *http2.Framer) { _ = f.WriteGoAway(0, http2.ErrCodeNo, nil) }, "closes the connection"},
		"another stream": {func(f *http2.Framer) { _ = f.WriteData(5, true, nil) }, "unexpected frame of stream 5"},
		"ended twice":    {func(f *http2.Framer) { answer(f, 1); answer(f, 1) }, "unexpected frame of stream 1"},
		"no message":     {func(f *http2.Framer) { _ = f.WriteData(1, true, nil); _ = f.WriteData(3, true, nil) }, "malformed gRPC message"},
		"compressed": {func(f *http2.Framer) {
			_ = f.WriteData(1, true, []byte{1, 0, 0, 0, 0})
			_ = f.WriteData(3, true, empty)
		}, "malformed gRPC message"},
		"a frame too large": {func(f *http2.Framer) { _ = f.WriteData(1, true, make([]byte, maxFrame+1)) }, "too large"},
		"too much padding":  {func(f *http2.Framer) { _ = f.WriteRawFrame(http2.FrameData, http2.FlagDataPadded, 1, []byte{9, 1}) }, "malformed HTTP/2 frame"},
		"malformed headers": {func(f *http2.Framer) {
			_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0xff}, EndHeaders: true})
		}, "malformed HTTP/2 headers"},
		"connection is lost": {func(*http2.Framer) {}, "read: "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address := filepath.Join(testutil.ShortDir(t), "s")
			listener, err := net.Listen("unix", address)
			testutil.NoError(t, err)
			defer listener.Close()
			acks := make(chan []http2.FrameType, 1)
			go func() { // Ends with the connection.
				conn, err := listener.Accept()
				if err != nil {
					close(acks)
					return
				}
				defer conn.Close()
				f := http2.NewFramer(conn, conn)
				f.AllowIllegalWrites = true
				test.send(f) // Before it reads, as containerd does.
				if test.want == "read: " {
					close(acks)
					return
				}
				_, _ = io.ReadFull(conn, make([]byte, len(preface)))
				var seen []http2.FrameType
				for frame, err := f.ReadFrame(); err == nil; frame, err = f.ReadFrame() {
					if frame.Header().Flags.Has(http2.FlagSettingsAck) && frame.Header().StreamID == 0 {
						seen = append(seen, frame.Header().Type)
					}
				}
				acks <- seen
			}()
			container, pod, err := Query(t.Context(), address, "c", "s")
			testutil.CheckError(t, "query", err, test.want)
			if seen := <-acks; err == nil && (len(container)+len(pod) > 0 || !cmp.Equal(seen, []http2.FrameType{http2.FrameSettings, http2.FramePing})) {
				t.Errorf("%v, %v, acknowledged %v", container, pod, seen)
			}
		})
	}
}

func FuzzAnswers(f *testing.F) {
	f.Add([]byte{0, 0, 0, frameSettings, 0, 0, 0, 0, 0})
	f.Add(append([]byte{0, 0, 5, frameData, flagEndStream, 0, 0, 0, 1}, 0, 0, 0, 0, 0))
	f.Add([]byte{0, 0, 1, frameHeaders, flagEndHeaders | flagEndStream | flagPadded, 0, 0, 0, 1, 0x88})
	f.Fuzz(func(_ *testing.T, data []byte) {
		answers, err := readAnswers(bytes.NewReader(data), 1, func([]byte) {})
		if err == nil {
			_, _ = annotations(answers[0], containerAnnotations)
		}
		_, _ = annotations(data, podAnnotations)
	})
}
