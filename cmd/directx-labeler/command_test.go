package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/directx-nri/directx-nri/advertiser/nodelabels"
	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/internal/testutil"
)

// TestRun has the program patch its node in an API server that fails at first. The cluster
// suite runs it with a real one.
func TestRun(t *testing.T) {
	t.Parallel()
	patches := make(chan string)
	failures := 1
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if failures--; failures >= 0 {
			http.Error(w, "the test fails the first request", http.StatusForbidden)
			return
		}
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata"}`)
		patches <- fmt.Sprintf("%s %s %s", r.Method, r.URL.Path, body)
	}))
	defer server.Close()
	dir := t.TempDir()
	kubeconfig := filepath.Join(dir, "kubeconfig")
	text := fmt.Appendf(nil, `{apiVersion: v1, kind: Config, current-context: c, `+
		`contexts: [{name: c, context: {cluster: c}}], clusters: [{name: c, cluster: {server: %q}}]}`, server.URL)
	testutil.NoError(t, os.WriteFile(kubeconfig, text, 0o600))
	o := options{node: "n1", labelsFile: filepath.Join(dir, "labels"), kubeconfig: kubeconfig, pollInterval: time.Millisecond}
	log := errlog.NewLogger(t.Output())
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- o.run(ctx, log) }()
	for _, test := range []struct {
		labels map[string]string
		want   string
	}{
		{map[string]string{nodelabels.Prefix + "count": "2", nodelabels.Prefix + "present": "true"}, `"directx.microsoft.com/gpu.count":"2","directx.microsoft.com/gpu.driver":null,`},
		{nil, `"directx.microsoft.com/gpu.count":null,`},
	} {
		testutil.NoError(t, nodelabels.Write(o.labelsFile, test.labels))
		if got := <-patches; !strings.HasPrefix(got, `PATCH /api/v1/nodes/n1 {"metadata":{"labels":{`+test.want) {
			t.Errorf("the node is patched by %s, want %s", got, test.want)
		}
	}
	cancel()
	testutil.NoError(t, <-done)
}

func TestFlags(t *testing.T) {
	t.Parallel()
	command := newCommand()
	command.SetArgs([]string{})
	testutil.CheckError(t, "without flags", command.ExecuteContext(t.Context()), `required flag(s) "labels-file", "node"`)
}
