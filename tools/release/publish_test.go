package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
)

// TestPublish publishes a small release to registries that have nothing, have it, have another one, or do not say
// what they have.
func TestPublish(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		published string // the label of the image that the registry has
		status    int    // of the registry's answers for manifests
		want      string
	}{
		"nothing":   {},
		"the same":  {published: "new"},
		"another":   {published: "old", want: "a release is not replaced"},
		"no access": {status: http.StatusForbidden, want: "403"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var status, writes atomic.Int64
			inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if code := int(status.Load()); code != 0 && strings.Contains(r.URL.Path, "/manifests/") {
					w.WriteHeader(code)
					return
				}
				if r.Method != http.MethodGet && r.Method != http.MethodHead {
					writes.Add(1)
				}
				inner.ServeHTTP(w, r)
			}))
			defer server.Close()
			address := strings.Replace(strings.TrimPrefix(server.URL, "http://"), "127.0.0.1", "localhost", 1)
			publish := func(label string) error {
				r := smallRelease(t, address+"/owner/directx-nri:v0.2.0", label)
				return r.publish(t.Context(), r.out, address+"/owner/charts", io.Discard)
			}
			if test.published != "" {
				if err := publish(test.published); err != nil {
					t.Fatal(err)
				}
			}
			status.Store(int64(test.status))
			writes.Store(0)
			switch err := publish("new"); {
			case test.want == "" && err != nil:
				t.Error(err)
			case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
				t.Errorf("error %v, want %q", err, test.want)
			case test.want != "" && writes.Load() != 0:
				t.Errorf("the registry has been changed by %d requests", writes.Load())
			}
		})
	}
}

// smallRelease writes a release of an image that has nothing but a label, and of a chart.
func smallRelease(t *testing.T, image, label string) release {
	t.Helper()
	r := release{version: "v0.2.0", image: image, out: t.TempDir(), created: time.Unix(0, 0)}
	index := mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: mutate.Annotations(empty.Image, map[string]string{"label": label}).(v1.Image)})
	if err := r.writeImage("", index); err != nil {
		t.Fatal(err)
	}
	chart, err := r.tar(tree{"directx-nri/Chart.yaml": &fstest.MapFile{Data: []byte("name: directx-nri\nversion: 0.2.0\n")}}, func(*tar.Header) {})
	if err != nil {
		t.Fatal(err)
	}
	var packed bytes.Buffer
	compressor := gzip.NewWriter(&packed)
	if _, err := compressor.Write(chart); err != nil {
		t.Fatal(err)
	}
	if err := compressor.Close(); err != nil {
		t.Fatal(err)
	}
	if err := r.write("directx-nri-0.2.0.tgz", packed.Bytes()); err != nil {
		t.Fatal(err)
	}
	return r
}
