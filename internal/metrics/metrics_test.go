package metrics

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	quiet "github.com/directx-nri/directx-nri/internal/testutil"
)

func TestSetNodeInfo(t *testing.T) {
	t.Parallel()
	m := New("directx-advertiser", "v1")
	m.SetNodeInfo("windows", "location-path", "mount", "shim")
	m.SetNodeInfo("windows", "class-guid", "none", "kubelet")
	page := httptest.NewRecorder()
	m.Handler(quiet.Quiet()).ServeHTTP(page, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	const want = "\ndirectx_node_info{assignment=\"class-guid\",driver_files=\"none\",injection=\"kubelet\",os=\"windows\"} 1\n"
	if got := page.Body.String(); !strings.Contains(got, want) || strings.Count(got, "directx_node_info{") != 1 {
		t.Errorf("want one series %sin\n%s", want, got)
	}
}
