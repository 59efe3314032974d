package nri

import (
	"bytes"
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/sirupsen/logrus"
)

// recordingObserver records events.
type recordingObserver struct {
	mu     sync.Mutex
	events []string
}

func (o *recordingObserver) add(event string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.events = append(o.events, event)
}

func (o *recordingObserver) HookDone(hook string, _ time.Duration) { o.add(hook) }
func (o *recordingObserver) Refused(by, reason string)             { o.add("refused by " + by + ": " + reason) }

// jsonLog returns a log and a function that returns its lines.
func jsonLog() (log *logrus.Logger, lines func() []map[string]string) {
	var out bytes.Buffer
	log = logrus.New()
	log.SetOutput(&out)
	log.SetFormatter(&logrus.JSONFormatter{DisableTimestamp: true})
	return log, func() []map[string]string {
		var list []map[string]string
		for line := range strings.Lines(out.String()) {
			var fields map[string]string
			if err := json.Unmarshal([]byte(line), &fields); err != nil {
				return []map[string]string{{"not JSON": line}}
			}
			list = append(list, fields)
		}
		return list
	}
}

func TestRefusalIsLoggedAndCountedOnce(t *testing.T) {
	t.Parallel()
	log, lines := jsonLog()
	b := newBed(t)
	b.plugin.log = log
	_, err := b.adjust(testPod(), testContainer(displayKey+"=0123456789abcdef0123456789abcdef"))
	if err == nil {
		t.Fatal("not refused")
	}
	want := []map[string]string{{
		"level": "error", "msg": "Container refused", "pod": "default/web", "container": "main", "reason": "no_record", "error": err.Error(),
	}}
	if diff := cmp.Diff(want, lines()); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"refused by nri: no_record", "CreateContainer"}, b.observer.events); diff != "" {
		t.Error(diff)
	}
}

func TestPluginIsNotAliveWhenEveryHookHangs(t *testing.T) {
	t.Parallel()
	p := newBed(t).plugin
	for range maxWorkers - 1 {
		p.slots <- struct{}{}
	}
	if err := p.Alive(); err != nil {
		t.Error(err)
	}
	p.slots <- struct{}{}
	if p.Alive() == nil {
		t.Error("alive")
	}
}
