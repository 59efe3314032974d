//go:build e2e && linux

package e2e

import (
	"bufio"
	"errors"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/directx-nri/directx-nri/decision"
	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/shim/shimfile"
	"github.com/directx-nri/directx-nri/test/bed"
)

// page is an address that a daemon serves metrics and health at.
type page string

// read returns the metrics by name and labels.
// https://prometheus.io/docs/instrumenting/exposition_formats/
func (p page) read() (map[string]float64, error) {
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Get("http://" + string(p) + "/metrics")
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	numbers := map[string]float64{}
	for lines := bufio.NewScanner(response.Body); lines.Scan(); {
		line := lines.Text()
		if space := strings.LastIndexByte(line, ' '); space > 0 && line[0] != '#' {
			if numbers[line[:space]], err = strconv.ParseFloat(line[space+1:], 64); err != nil {
				return nil, err
			}
		}
	}
	return numbers, nil
}

// numbers returns the metrics of a daemon that serves them now.
func (p page) numbers(t *testing.T) map[string]float64 {
	t.Helper()
	numbers, err := p.read()
	testutil.NoError(t, err)
	return numbers
}

// waitFor waits until these metrics have these values. A changed configuration
// restarts the advertiser's server, so it may not serve for a moment.
func (p page) waitFor(t *testing.T, want map[string]float64) {
	t.Helper()
	bed.Eventually(t, 30*time.Second, fmt.Sprintf("metrics %v", want), func() error {
		got, err := p.read()
		for name, value := range want {
			// A counter appears with its first event.
			if err == nil && got[name] != value {
				err = fmt.Errorf("%s is %v", name, got[name])
			}
		}
		return err
	})
}

// waitStatus waits until a page has that status, and text in it.
func (p page) waitStatus(t *testing.T, path string, status int, text string) {
	t.Helper()
	bed.Eventually(t, 60*time.Second, fmt.Sprintf("%s%s answers %d", p, path, status), func() error {
		if problem := testutil.Answers(t, "http://"+string(p)+path, status, text); problem != "" {
			return errors.New(problem)
		}
		return nil
	})
}

// TestMetrics reads the daemons' metrics while pods start, are refused, and the node's
// other programs restart.
func TestMetrics(t *testing.T) {
	advertiser, plugin := page(testutil.FreeAddress(t)), page(testutil.FreeAddress(t))
	settings := fmt.Sprintf("metrics: {address: '%s'}\nextraMounts: {sources: none}\n", advertiser)
	n := bed.Start(t, bed.Options{
		Replicas: 4, Inventory: bed.NewInventory(2, 1), Config: settings, PluginFlags: []string{"--metrics-address", string(plugin)},
	})
	const display = `resource="` + bed.Display + `"`
	first := fmt.Sprintf(`gpu="%s",%s`, n.Inventory.GPUs[0].LocationPath(), display)

	t.Run("a node without pods", func(t *testing.T) {
		for _, p := range []page{advertiser, plugin} {
			p.waitStatus(t, "/healthz", http.StatusOK, "ok")
			p.waitStatus(t, "/readyz", http.StatusOK, "ok")
		}
		advertiser.waitFor(t, map[string]float64{
			`directx_devices{health="healthy",kind="display"}`:                                              2,
			`directx_devices{health="healthy",kind="compute"}`:                                              1,
			"directx_replicas{" + first + "}":                                                               4,
			"directx_replicas_in_use{" + first + "}":                                                        0,
			"directx_resource_registered{" + display + "}":                                                  1,
			`directx_node_info{assignment="location-path",driver_files="mount",injection="nri",os="linux"}`: 1,
			"directx_config_last_reload_successful":                                                         1,
			`directx_resource_registered{resource="` + bed.Compute + `"}`:                                   1,
		})
	})

	t.Run("a pod that starts", func(t *testing.T) {
		pod := n.RunPod(t, bed.GPUPod("counted", 1))
		gpu := n.Inventory.GPUs[n.AssignedGPUs(t, pod, "main")[0]].LocationPath()
		advertiser.waitFor(t, map[string]float64{
			"directx_allocations_total{" + display + "}":                                  1,
			fmt.Sprintf(`directx_replicas_in_use{gpu="%s",%s}`, gpu, display):             1,
			"directx_start_check_duration_seconds_count{" + display + `,result="passed"}`: 1,
		})
		if hooks := plugin.numbers(t)["directx_hook_duration_seconds_count"]; hooks < 1 {
			t.Errorf("%v creations were timed, want the pod's", hooks)
		}
		n.Remove(t, pod)
		advertiser.waitFor(t, map[string]float64{fmt.Sprintf(`directx_replicas_in_use{gpu="%s",%s}`, gpu, display): 0})
	})

	t.Run("a refusal is counted once and logged once for each try", func(t *testing.T) {
		mark, events := n.Plugin.Mark(), n.Kubelet.Mark()
		pod := n.Apply(t, extraMountsPod("refused", decision.ExtraMountsAnnotation, "/opt/tool"))
		n.WaitNotStarted(t, pod, "main", events)
		n.SyncPods(t, pod)
		bed.Eventually(t, 60*time.Second, "the kubelet tries again", func() error {
			if len(failures(n, pod, events)) < 2 {
				return errors.New("not yet")
			}
			return nil
		})
		n.Remove(t, pod)
		tries := len(failures(n, pod, events))
		if lines := strings.Count(n.Plugin.Log(mark), "Container refused"); lines != tries {
			t.Errorf("%d lines for %d refusals:\n%s", lines, tries, n.Plugin.Log(mark))
		}
		bed.MustContain(t, "the plugin's log", n.Plugin.Log(mark), "pod=default/"+pod, "container=main", "reason=policy")
		plugin.waitFor(t, map[string]float64{`directx_refusals_total{reason="policy"}`: float64(tries)})
	})

	t.Run("the rules and the dashboard use metrics that are served", func(t *testing.T) {
		served := map[string]bool{"directx_allocation_failures_total": true} // It begins with the first failure.
		for _, p := range []page{advertiser, plugin} {
			for series := range p.numbers(t) {
				name, _, _ := strings.Cut(series, "{")
				served[name] = true
			}
		}
		for _, file := range []string{"rules.yaml", "dashboard.json"} {
			text, err := os.ReadFile("../../deployments/helm/directx-nri/monitoring/" + file)
			testutil.NoError(t, err)
			for _, name := range regexp.MustCompile(`directx_\w+`).FindAllString(string(text), -1) {
				if !served[name] {
					t.Errorf("%s: no daemon serves %s", file, name)
				}
			}
		}
	})

	for _, row := range []struct {
		program *bed.Process
		page
		reason string
	}{{n.Kubelet, advertiser, "kubelet"}, {n.Containerd, plugin, ""}, {n.Plugin, advertiser, "directx-nri"}} {
		t.Run(row.program.Name+" goes and comes", func(t *testing.T) {
			row.program.Terminate(t)
			row.waitStatus(t, "/readyz", http.StatusServiceUnavailable, row.reason)
			row.waitStatus(t, "/healthz", http.StatusOK, "ok")
			row.program.Start(t)
			for _, p := range []page{plugin, advertiser} {
				p.waitStatus(t, "/readyz", http.StatusOK, "ok")
			}
		})
	}
}

// TestReadinessOfShim: while the shim cannot give a container its GPU, the advertiser is not ready, so that a rollout stops.
func TestReadinessOfShim(t *testing.T) {
	advertiser := page(testutil.FreeAddress(t))
	n := bed.Start(t, bed.Options{
		WindowsKubelet: true, Replicas: 1, Inventory: bed.NewInventory(1, 0), Config: fmt.Sprintf("metrics: {address: '%s'}\n", advertiser),
	})
	testutil.NoError(t, shimfile.RecordBypass(n.StateDir, "version 3"))
	advertiser.waitStatus(t, "/readyz", http.StatusServiceUnavailable, "version 3")
	testutil.NoError(t, shimfile.RecordBypass(n.StateDir, ""))
	advertiser.waitStatus(t, "/readyz", http.StatusOK, "ok")
}

// failures returns the kubelet's events since a mark that report that the
// pod's container main could not be created.
func failures(n *bed.Node, pod string, since bed.Mark) []bed.Event {
	return slices.DeleteFunc(n.EventsSince(pod, since), func(e bed.Event) bool {
		return e.Reason != "Failed" || !strings.Contains(e.Message, "directx-nri")
	})
}
