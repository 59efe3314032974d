package httpserver

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

func pages() Pages {
	well := func(context.Context) error { return nil }
	return Pages{
		Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "m 1\n") }),
		Healthy: well, Ready: well,
	}
}

// serve runs a server until the test ends, and returns its address.
func serve(t *testing.T, p Pages) string {
	t.Helper()
	s, err := Listen(t.Context(), "metrics.address", "127.0.0.1:0", p)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return "http://" + s.Address()
}

func get(t *testing.T, method, url string) (status int, body string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	// A client of its own keeps no connection beyond the test.
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(data)
}

func TestPages(t *testing.T) {
	t.Parallel()
	p := pages()
	p.Ready = func(context.Context) error { return errors.New("the kubelet does not know us") }
	base := serve(t, p)
	for _, test := range []struct {
		method, path string
		status       int
		body         string
	}{
		{"GET", "/metrics", 200, "m 1\n"},
		{"GET", "/healthz", 200, "ok\n"},
		{"HEAD", "/healthz", 200, ""},
		{"GET", "/readyz", 503, "the kubelet does not know us\n"},
		{"POST", "/readyz", 405, "Method Not Allowed\n"},
		{"GET", "/", 404, "404 page not found\n"},
		{"GET", "/debug/pprof/", 404, "404 page not found\n"},
	} {
		if status, body := get(t, test.method, base+test.path); status != test.status || body != test.body {
			t.Errorf("%s %s: %d %q, want %d %q", test.method, test.path, status, body, test.status, test.body)
		}
	}
}

func TestChecksEndWithTheQuestion(t *testing.T) {
	t.Parallel()
	p := pages()
	p.Healthy = func(ctx context.Context) error {
		if _, bounded := ctx.Deadline(); !bounded {
			return errors.New("the check has no deadline")
		}
		return nil
	}
	if status, body := get(t, "GET", serve(t, p)+"/healthz"); status != 200 {
		t.Error(status, body)
	}
}

func TestTakenAddressIsAnErrorThatNamesTheKey(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for _, address := range []string{taken.Addr().String(), "no port", "127.0.0.1:99999", "192.0.2.1:9400"} {
		_, err := Listen(t.Context(), "metrics.pluginAddress", address, pages())
		if err == nil || !strings.Contains(err.Error(), "set metrics.pluginAddress to") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", address, err)
		}
	}
}

func TestAddressIsFreeAfterTheEnd(t *testing.T) {
	t.Parallel()
	s, err := Listen(t.Context(), "k", "127.0.0.1:0", pages())
	if err != nil {
		t.Fatal(err)
	}
	address := s.Address()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Run(ctx); err != nil {
		t.Error(err)
	}
	again, err := Listen(t.Context(), "k", address, pages())
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(again.Close(), again.Close()); err != nil {
		t.Error(err)
	}
}
