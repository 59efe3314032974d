package errlog

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"
)

func TestLast(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log := logrus.New()
	log.SetOutput(&out)
	var last LastError
	for i, test := range []struct {
		err  error
		want string
	}{
		{nil, ""},
		{errors.New("a"), "failed"},
		{errors.New("a"), ""},
		{errors.New("b"), "failed"},
		{nil, "recovered"},
		{nil, ""},
		{errors.New("b"), "failed"},
	} {
		out.Reset()
		last.Log(log, test.err, "failed", "recovered")
		if got := out.String(); test.want == "" && got != "" || !strings.Contains(got, test.want) {
			t.Errorf("%d: %q, want %q", i, got, test.want)
		}
	}
}

func TestOneLine(t *testing.T) {
	t.Parallel()
	if got := OneLine("\na\r\n\tb  c\u2028d\u202E\x1b[2J\xff\n"); got != "a b  c d [2J\uFFFD" {
		t.Errorf("%q", got)
	}
}

func TestConfigure(t *testing.T) {
	t.Parallel()
	for format, want := range map[string]string{"text": "level=warning msg=x pod=team/gpu", "json": `"level":"warning","msg":"x","pod":"team/gpu"`} {
		var out bytes.Buffer
		log := logrus.New()
		log.SetOutput(&out)
		Configure(log, "warn", format)
		log.Info("less severe")
		log.WithField("pod", "team/gpu").Warn("x")
		if got := out.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, want) {
			t.Errorf("%s: %s", format, got)
		}
	}
}
