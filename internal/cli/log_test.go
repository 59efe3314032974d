package cli

import (
	"bytes"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"
)

func TestConfigureLog(t *testing.T) {
	t.Parallel()
	for format, want := range map[string]string{"text": "level=warning msg=x pod=team/gpu", "json": `"level":"warning","msg":"x","pod":"team/gpu"`} {
		var out bytes.Buffer
		log := logrus.New()
		log.SetOutput(&out)
		if err := ConfigureLog(log, "warn", format); err != nil {
			t.Fatal(err)
		}
		for _, wrong := range [][2]string{{"trace", "text"}, {"", "text"}, {"INFO", "json"}, {"debug", "xml"}, {"debug", ""}} {
			if err := ConfigureLog(log, wrong[0], wrong[1]); err == nil {
				t.Errorf("%q passes", wrong)
			}
		}
		log.Info("less severe")
		log.WithField("pod", "team/gpu").Warn("x")
		if got := out.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, want) {
			t.Errorf("%s: %s", format, got)
		}
	}
}
