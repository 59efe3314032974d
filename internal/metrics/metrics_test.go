package metrics

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	quiet "github.com/directx-nri/directx-nri/internal/testutil"
)

// page returns the metrics without those of the process and of Go.
func page(t *testing.T, m *Metrics) string {
	t.Helper()
	answer := httptest.NewRecorder()
	m.Handler(quiet.Quiet()).ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	body, err := io.ReadAll(answer.Result().Body)
	if err != nil || answer.Code != 200 {
		t.Fatal(answer.Code, err)
	}
	var ours strings.Builder
	for line := range strings.Lines(string(body)) {
		if strings.HasPrefix(line, "directx_") {
			ours.WriteString(line)
		}
	}
	return ours.String()
}

func TestConfigMetrics(t *testing.T) {
	t.Parallel()
	at := time.UnixMilli(1_700_000_000_500)
	for name, test := range map[string]struct {
		call func(*Metrics)
		want []string
	}{
		"build": {func(*Metrics) {}, []string{`directx_build_info{goversion="go`, `program="directx-advertiser",version="v1"} 1`}},
		"modes, changed": {func(m *Metrics) {
			m.SetNodeInfo("windows", "location-path", "mount", "shim")
			m.SetNodeInfo("windows", "class-guid", "none", "kubelet")
		}, []string{"\ndirectx_node_info{assignment=\"class-guid\",driver_files=\"none\",injection=\"kubelet\",os=\"windows\"} 1\n"}},
		"first configuration": {func(m *Metrics) { m.ConfigRead(at) },
			[]string{"directx_config_last_reload_successful 1", "directx_config_last_reload_success_timestamp_seconds 1.7000000005e+09"}},
		"configuration": {func(m *Metrics) { m.ConfigRead(at); m.ConfigApplied() },
			[]string{`directx_config_reloads_total{result="applied"} 1`, "directx_config_last_reload_successful 1"}},
		"bad configuration": {func(m *Metrics) { m.ConfigRead(at); m.ConfigRefused() },
			[]string{`directx_config_reloads_total{result="refused"} 1`, "directx_config_last_reload_successful 0", "timestamp_seconds 1.7000000005e+09"}},
	} {
		m := New("directx-advertiser", "v1")
		test.call(m)
		got := page(t, m)
		for _, want := range test.want {
			if !strings.Contains(got, want) {
				t.Errorf("%s: %q is missing in\n%s", name, want, got)
			}
		}
		if series := strings.Count(got, "directx_node_info{"); series > 1 {
			t.Errorf("%s: %d series of directx_node_info", name, series)
		}
	}
}
