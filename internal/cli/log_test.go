package cli

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"
)

func TestConfigureLog(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log := logrus.New()
	log.SetOutput(&out)
	for _, test := range []struct {
		level, format string
		want          []string
	}{
		{"error", "text", []string{"error"}},
		{"warn", "json", []string{"error", "warning"}},
		{"info", "text", []string{"error", "warning", "info"}},
		{"debug", "json", []string{"error", "warning", "info", "debug"}},
	} {
		out.Reset()
		if err := ConfigureLog(log, test.level, test.format); err != nil {
			t.Fatal(err)
		}
		entry := log.WithField("pod", "team/gpu")
		entry.Error("x")
		entry.Warn("x")
		entry.Info("x")
		entry.Debug("x")
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		if len(lines) != len(test.want) {
			t.Errorf("%s: %q", test.level, lines)
			continue
		}
		for i, line := range lines {
			var fields map[string]string
			isJSON := json.Unmarshal([]byte(line), &fields) == nil
			if isJSON != (test.format == "json") {
				t.Errorf("%s: %s", test.format, line)
			}
			if isJSON && (fields["level"] != test.want[i] || fields["pod"] != "team/gpu") ||
				!isJSON && !strings.Contains(line, "level="+test.want[i]+" msg=x pod=team/gpu") {
				t.Errorf("%s: %s", test.want[i], line)
			}
		}
	}
}

func TestConfigureLogInvalid(t *testing.T) {
	t.Parallel()
	log := logrus.New()
	before := log.Formatter
	for _, wrong := range [][2]string{{"trace", "text"}, {"", "text"}, {"INFO", "json"}, {"debug", "xml"}, {"debug", ""}} {
		if err := ConfigureLog(log, wrong[0], wrong[1]); err == nil {
			t.Errorf("%q passes", wrong)
		}
	}
	if log.GetLevel() != logrus.InfoLevel || log.Formatter != before {
		t.Error("the log was changed")
	}
}
