package errlog

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestLastError(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log := NewLogger(&out)
	var last LastError
	for i, test := range []struct {
		err  error
		want string
	}{
		{nil, ""},
		{errors.New("a"), "failed"},
		{errors.New("a"), ""},
		{errors.New("b"), "failed"},
		{WithRemedy(errors.New("b"), "do this"), `"b; do this"`},
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

type hungWriter chan struct{}

func (w hungWriter) Write(line []byte) (int, error) {
	<-w
	return len(line), nil
}

// TestHungLog: the caller does not wait for it.
func TestHungLog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		hang, began := make(hungWriter), time.Now()
		log := NewLogger(hang)
		for range 9 {
			log.Info("a line")
		}
		if took := time.Since(began); took != lineTimeout {
			t.Errorf("9 lines took %s", took)
		}
		close(hang)
	})
}
