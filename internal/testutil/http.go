package testutil

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

// FreeAddress returns a local TCP address with a free port. The configuration
// does not take port 0.
func FreeAddress(t testing.TB) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

// Answers gets url and returns why the response does not have the status and all of
// the texts, "" if it does.
func Answers(t testing.TB, url string, status int, texts ...string) string {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
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
