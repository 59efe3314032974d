package testutil

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
)

// Ports of the tests' servers are below those that the kernel assigns by itself
// (ip_local_port_range), so no other connection takes one between the choice of a port and its use.
const firstPort, ports = 20000, 12000

var nextPort atomic.Int64 //nolint:gochecknoglobals // One sequence for all tests of a process.

// FreeAddress returns an unused TCP address of 127.0.0.1 that it has not returned before. Tests
// need it because the configuration does not accept port 0. Processes with near IDs begin elsewhere.
func FreeAddress(t testing.TB) string {
	t.Helper()
	for range ports {
		port := firstPort + (int64(os.Getpid())*100+nextPort.Add(1))%ports
		if listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			NoError(t, listener.Close())
			return listener.Addr().String()
		}
	}
	t.Fatal("there is no free port")
	return ""
}

// Answers gets url and returns why the response does not have the status and all of
// the texts, "" if it does.
func Answers(t testing.TB, url string, status int, texts ...string) string {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	NoError(t, err)
	response, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(request)
	if err != nil {
		return err.Error()
	}
	body, err := io.ReadAll(response.Body)
	if err = errors.Join(err, response.Body.Close()); err != nil || response.StatusCode != status {
		return fmt.Sprintf("status %d, %v: %s", response.StatusCode, err, body)
	}
	for _, text := range texts {
		if !strings.Contains(string(body), text) {
			return fmt.Sprintf("%q is missing in %s", text, body)
		}
	}
	return ""
}
