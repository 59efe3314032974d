//go:build unix

package deployments

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

const monitoring = "helm/directx-nri/monitoring/"

// query is an expression in PromQL, and what names labels of its result.
type query struct{ expr, text string }

// queries returns those of the rules and of the dashboard.
func queries(t *testing.T) (rules, panels []query) {
	t.Helper()
	var ruleFile struct {
		Groups []struct {
			Rules []struct {
				Expr        string
				Annotations map[string]string
			}
		}
	}
	var dashboard struct {
		Panels []struct {
			Targets []struct{ Expr, LegendFormat string }
		}
	}
	for file, into := range map[string]any{"rules.yaml": &ruleFile, "dashboard.json": &dashboard} {
		text, err := os.ReadFile(monitoring + file)
		if err == nil && file == "dashboard.json" {
			err = json.Unmarshal(text, into)
		} else if err == nil {
			err = yaml.Unmarshal(text, into)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, rule := range ruleFile.Groups[0].Rules {
		rules = append(rules, query{rule.Expr, rule.Annotations["summary"] + rule.Annotations["description"]})
	}
	// Grafana replaces these.
	variables := strings.NewReplacer("$__rate_interval", "5m", "$instance", ".*")
	for _, panel := range dashboard.Panels {
		for _, target := range panel.Targets {
			panels = append(panels, query{variables.Replace(target.Expr), target.LegendFormat})
		}
	}
	if len(rules) < 7 || len(panels) < 12 {
		t.Fatalf("%d rules, %d panels", len(rules), len(panels))
	}
	return rules, panels
}

var (
	seriesLine  = regexp.MustCompile(`(?m)^(directx_\w+)(?:{(.*)})? (\S+)$`)
	selector    = regexp.MustCompile(`(directx_\w+)(?:\{([^}]*)\})?`)
	matcher     = regexp.MustCompile(`(\w+)([!=]~?)("[^"]*")`)
	grouping    = regexp.MustCompile(`\bby \(([^)]*)\)`)
	placeholder = regexp.MustCompile(`\{\{ ?(?:\$labels\.)?(\w+) ?\}\}`)
)

// metrics returns the series of both daemons, each with its name, its labels and its value, and the names of the
// labels by those of the metrics. The test TestMetrics of test/e2e scraped them, after a failed allocation.
func metrics(t *testing.T) (series [][]string, labels map[string][]string) {
	t.Helper()
	text, err := os.ReadFile("helm/testdata/metrics.txt")
	if err != nil {
		t.Fatal(err)
	}
	series, labels = seriesLine.FindAllStringSubmatch(string(text), -1), map[string][]string{}
	for _, s := range series {
		labels[s[1]] = []string{"instance"}
		for _, m := range matcher.FindAllStringSubmatch(s[2], -1) {
			labels[s[1]] = append(labels[s[1]], m[1])
		}
	}
	return series, labels
}

// The rules and the dashboard use metrics and labels that exist.
func TestMonitoringMetrics(t *testing.T) {
	t.Parallel()
	_, exported := metrics(t)
	rules, panels := queries(t)
	for _, q := range slices.Concat(rules, panels) {
		var all []string
		for _, use := range selector.FindAllStringSubmatch(q.expr, -1) {
			labels, ok := exported[use[1]]
			if !ok {
				t.Errorf("%s: there is no metric %s", q.expr, use[1])
			}
			all = append(all, labels...)
			for _, m := range matcher.FindAllStringSubmatch(use[2], -1) {
				if !slices.Contains(labels, m[1]) {
					t.Errorf("%s: %s has no label %s", q.expr, use[1], m[1])
				}
			}
		}
		var used []string
		for _, by := range grouping.FindAllStringSubmatch(q.expr, -1) {
			used = append(used, strings.Split(by[1], ", ")...)
		}
		for _, name := range placeholder.FindAllStringSubmatch(q.text, -1) {
			used = append(used, name[1])
		}
		for _, label := range used {
			if !slices.Contains(all, label) {
				t.Errorf("%s: its metrics have no label %s", q.expr, label)
			}
		}
	}
}
