package metrics

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"github.com/directx-nri/directx-nri/internal/errlog"
	quiet "github.com/directx-nri/directx-nri/internal/testutil"
)

// serve runs a server until the test ends, which it does not do by itself, and returns its
// log when that has an entry.
func serve(t *testing.T, address string, health Health) *logtest.Hook {
	t.Helper()
	log, logged := logtest.NewNullLogger()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- New("prog", "v1").Serve(ctx, address, health, log) }()
	t.Cleanup(func() {
		if len(done) > 0 {
			t.Errorf("%s: the server has ended", address)
		}
		cancel()
		if err := <-done; err != nil {
			t.Errorf("%s: %v", address, err)
		}
	})
	quiet.Eventually(t, "entry in the log", func() bool { return logged.LastEntry() != nil })
	return logged
}

func get(t *testing.T, method, url string) (status int, body string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	quiet.NoError(t, err)
	// The default client would keep the connection beyond the test.
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	quiet.NoError(t, err)
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	quiet.NoError(t, err)
	return response.StatusCode, string(data)
}

func TestServe(t *testing.T) {
	t.Parallel()
	logged := serve(t, "127.0.0.1:0", Health{
		Alive: func() error { return nil },
		Ready: func(ctx context.Context) error {
			if _, bounded := ctx.Deadline(); !bounded {
				t.Error("the check has no deadline")
			}
			return errlog.WithRemedy(errors.New("the kubelet does not run"), "start it")
		},
	})
	base := fmt.Sprint("http://", logged.LastEntry().Data["address"])
	for _, test := range []struct {
		method, path string
		status       int
		body         string
	}{
		{"GET", "/metrics", 200, `directx_build_info{`},
		{"GET", "/healthz", 200, "ok\n"},
		{"HEAD", "/healthz", 200, ""},
		{"GET", "/readyz", 503, "the kubelet does not run; start it\n"},
		{"POST", "/readyz", 405, "Method Not Allowed\n"},
		{"GET", "/", 404, "404 page not found\n"},
		{"GET", "/debug/pprof/", 404, "404 page not found\n"},
	} {
		status, body := get(t, test.method, base+test.path)
		if matches := body == test.body || test.path == "/metrics" && strings.Contains(body, test.body); status != test.status || !matches {
			t.Errorf("%s %s: %d %q, want %d %q", test.method, test.path, status, body, test.status, test.body)
		}
	}
}

// TestLimits: clients without authentication can use little memory.
func TestLimits(t *testing.T) {
	t.Parallel()
	alive := func() error { return nil }
	address := fmt.Sprint(serve(t, "127.0.0.1:0", Health{Alive: alive}).LastEntry().Data["address"])
	request := "GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
	dial := func() net.Conn {
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", address)
		quiet.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	send := func(conn net.Conn, text string) {
		_, _ = io.WriteString(conn, text) // The server may end the connection first.
	}
	statusOf := func(conn net.Conn) string {
		quiet.NoError(t, conn.SetReadDeadline(time.Now().Add(quiet.Timeout)))
		line, _ := bufio.NewReader(conn).ReadString('\r')
		return line
	}
	large := dial()
	send(large, request+"X: "+strings.Repeat("x", 2*maxHeaderBytes))
	if status := statusOf(large); !strings.Contains(status, "431") {
		t.Errorf("large headers: %q", status)
	}
	quiet.NoError(t, large.Close())

	var open []net.Conn
	for range maxConnections + 2 {
		open = append(open, dial())
	}
	for i, conn := range slices.Backward(open) { // Once the last one is answered, the first two are closed.
		send(conn, request+"\r\n")
		if status := statusOf(conn); strings.Contains(status, "200") != (i >= 2) {
			t.Errorf("connection %d of %d: %q", i, len(open), status)
		}
	}

	began := time.Now()
	if status := statusOf(dial()); status != "" || time.Since(began) > clientTimeout/2 {
		t.Errorf("a client that sends nothing: %q after %s", status, time.Since(began))
	}
}

func TestServeWaitsForItsAddress(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	quiet.NoError(t, err)
	address := taken.Addr().String()
	if e := serve(t, address, Health{}).LastEntry(); e.Level != logrus.ErrorLevel || !strings.Contains(e.Message, "retrying") {
		t.Errorf("the log has %v", e)
	}
	quiet.NoError(t, taken.Close())
	quiet.Eventually(t, "metrics", func() bool {
		response, err := http.Get("http://" + address + "/metrics")
		return err == nil && response.Body.Close() == nil
	})
}

// TestHungCheck: each request is answered, and few checks hang.
func TestHungCheck(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		hang, checks := make(chan struct{}), atomic.Int64{}
		handler := healthHandler(func(context.Context) error {
			checks.Add(1)
			<-hang
			return nil
		})
		for range 2 * maxChecks {
			answer := httptest.NewRecorder()
			if handler(answer, httptest.NewRequest(http.MethodGet, "/readyz", nil)); answer.Code != http.StatusServiceUnavailable {
				t.Errorf("answered %d", answer.Code)
			}
		}
		if n := checks.Load(); n != maxChecks {
			t.Errorf("%d checks", n)
		}
		close(hang)
	})
}
