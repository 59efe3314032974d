package doctor

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"directx-nri/internal/config"
)

// TestMetricsAreTheProgramsOwn asks servers that are ours, somebody else's, and none.
func TestMetricsAreTheProgramsOwn(t *testing.T) {
	t.Parallel()
	serve := func(metrics string, healthy bool) string {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch {
			case r.URL.Path == "/metrics":
				_, _ = io.WriteString(w, metrics)
			case !healthy:
				w.WriteHeader(http.StatusServiceUnavailable)
				_, _ = io.WriteString(w, "all hooks hang\n")
			}
		}))
		t.Cleanup(server.Close)
		return server.Listener.Addr().String()
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	free.Close()
	const ours = `directx_build_info{goversion="go",program="directx-advertiser",version="1"} 1`
	silent, err := net.Listen("tcp", "127.0.0.1:0") // It never answers.
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { silent.Close() })
	greeter, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { greeter.Close() })
	go func() { // Ends with its listener.
		for {
			connection, err := greeter.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(connection, "220 mail.example.com\r\n")
			connection.Close()
		}
	}()
	everywhere := serve(ours, true)
	for name, test := range map[string]struct {
		address, other, unhealthy string
		nobody                    bool
	}{
		"ours":                          {address: everywhere},
		"ours, everywhere":              {address: everywhere[strings.LastIndex(everywhere, ":"):]},
		"ours, unhealthy":               {address: serve(ours, false), unhealthy: "all hooks hang"},
		"another of ours":               {address: serve(strings.ReplaceAll(ours, "advertiser", "nri"), true), other: "not those of directx-advertiser"},
		"another":                       {address: serve("up 1", true), other: "not those of directx-advertiser"},
		"one that is no server of HTTP": {address: greeter.Addr().String(), other: "does not answer to HTTP"},
		"one that hangs":                {address: silent.Addr().String(), nobody: true},
		"nobody":                        {address: free.Addr().String(), nobody: true},
	} {
		n := Node{Timeout: time.Minute}
		if test.address == silent.Addr().String() {
			n.Timeout = 100 * time.Millisecond
		}
		list := n.metrics(t.Context(), config.Config{MetricsAddress: test.address})
		if len(list) != 1 {
			t.Fatalf("%s: %+v", name, list)
		}
		m := list[0]
		if (m.Nobody != nil) != test.nobody || (m.Other == "") != (test.other == "") || !strings.Contains(m.Other, test.other) || m.Unhealthy != test.unhealthy || m.Key != "metrics.address" {
			t.Errorf("%s: %+v", name, m)
		}
	}
	if list := (Node{}).metrics(t.Context(), config.Default()); len(list) > 0 {
		t.Errorf("without an address: %+v", list)
	}
}
