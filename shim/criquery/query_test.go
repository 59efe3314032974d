//go:build unix

package criquery

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/internal/testutil/grpctest"
)

// TestQuery asks grpc-go's server, as containerd's is.
func TestQuery(t *testing.T) {
	t.Parallel()
	large := map[string]string{}
	for i := range 64 {
		large[fmt.Sprint("key", i)] = strings.Repeat("x", 128<<10) // 8 MiB: more than any window at the start.
	}
	for name, want := range map[string]struct{ container, pod map[string]string }{
		"none":  {map[string]string{}, map[string]string{}},
		"some":  {map[string]string{"a": "1", "b": ""}, map[string]string{"": "2", "ä": "\n"}},
		"large": {large, large},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			container, pod, err := Query("unix://"+grpctest.ServeAnnotations(t, want.container, want.pod), testutil.Timeout, "c1", "s")
			testutil.NoError(t, err)
			if diff := cmp.Diff([]map[string]string{want.container, want.pod}, []map[string]string{container, pod}); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestQueryFails(t *testing.T) {
	t.Parallel()
	address := grpctest.ServeAnnotations(t, nil, nil)
	for want, id := range map[string][2]string{`gRPC status 5: no container "x": 100%`: {"x", "s"}, "gRPC status 5: no sandbox": {"c1", "x"}} {
		_, _, err := Query(address, testutil.Timeout, id[0], id[1])
		testutil.CheckError(t, want, err, want)
	}
	_, _, err := Query(address+"none", testutil.Timeout, "c1", "s")
	testutil.CheckError(t, "no containerd", err, "no such file")
	silent := address + "silent"
	listener, err := net.Listen("unix", silent)
	testutil.NoError(t, err)
	defer listener.Close()
	if _, _, err := Query(silent, 50*time.Millisecond, "c1", "s"); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("no answer: %v", err)
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
		_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: ok, EndHeaders: true})
		_ = f.WriteData(id, false, empty)
		_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: trailers, EndHeaders: true, EndStream: true})
	}
	for name, test := range map[string]struct {
		send func(f *http2.Framer)
		want string
	}{
		"ping, shutdown, unknown frame, reset after the answer": {func(f *http2.Framer) {
			_ = f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1})
			_ = f.WritePing(false, [8]byte{1, 2, 3})
			_ = f.WriteGoAway(3, http2.ErrCodeNo, nil)
			_ = f.WriteRawFrame(77, 0, 0, []byte("x"))
			answer(f, 3)
			_ = f.WriteRSTStream(3, http2.ErrCodeNo)
			answer(f, 1)
		}, ""},
		"another status": {func(f *http2.Framer) {
			_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: headers(hpack.HeaderField{Name: ":status", Value: "503"}), EndHeaders: true})
		}, "HTTP status 503"},
		"reset":          {func(f *http2.Framer) { _ = f.WriteRSTStream(1, http2.ErrCodeCancel) }, "canceled the request"},
		"another stream": {func(f *http2.Framer) { _ = f.WriteData(5, true, nil) }, "unexpected frame of stream 5"},
		"no message":     {func(f *http2.Framer) { _ = f.WriteData(1, true, nil); _ = f.WriteData(3, true, nil) }, "malformed gRPC message"},
		"compressed": {func(f *http2.Framer) {
			_ = f.WriteData(1, true, []byte{1, 0, 0, 0, 0})
			_ = f.WriteData(3, true, empty)
		}, "malformed gRPC message"},
		"a frame too large": {func(f *http2.Framer) { _ = f.WriteData(1, true, make([]byte, maxFrame+1)) }, "too large"},
		"padding":           {func(f *http2.Framer) { _ = f.WriteDataPadded(1, false, empty, make([]byte, 9)) }, "unexpected flags 0x8"},
		"continued headers": {func(f *http2.Framer) {
			_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: ok[:1]})
		}, "unexpected flags 0x0"},
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
			container, pod, err := Query(address, testutil.Timeout, "c", "s")
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
	f.Add([]byte{0, 0, 1, frameHeaders, flagEndHeaders | flagEndStream, 0, 0, 0, 1, 0x88})
	f.Fuzz(func(_ *testing.T, data []byte) {
		answers, err := readAnswers(bytes.NewReader(data), 1, func([]byte) {})
		if err == nil {
			_, _ = annotations(answers[0], containerAnnotations)
		}
		_, _ = annotations(data, podAnnotations)
	})
}
