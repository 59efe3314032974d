package nri

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/sirupsen/logrus"

	"directx-nri/ocispec"
)

// told is an observer that writes down what it is told.
type told struct {
	mu     sync.Mutex
	events []string
}

func (o *told) add(event string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.events = append(o.events, event)
}

func (o *told) HookDone(hook string, _ time.Duration) { o.add(hook) }
func (o *told) Refused(by, reason string)             { o.add("refused by " + by + ": " + reason) }
func (o *told) Evicted()                              { o.add("evicted") }

// jsonLog returns a log and what gives its lines.
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

func TestOneRefusalIsOneLine(t *testing.T) {
	t.Parallel()
	const token = displayKey + "=0123456789abcdef0123456789abcdef"
	for name, test := range map[string]struct {
		// do returns the hook's error.
		do     func(p *Plugin, g *Guard) error
		reason string
		want   []string
	}{
		"creation, by the plugin": {
			func(p *Plugin, _ *Guard) error {
				_, _, err := p.CreateContainer(context.Background(), testPod(), testContainer(token))
				return err
			}, "no_record", []string{"refused by nri: no_record", "CreateContainer"},
		},
		"start, by the plugin": {
			func(p *Plugin, _ *Guard) error {
				return p.StartContainer(context.Background(), testPod(), testContainer(token))
			}, "unadjusted", []string{"refused by nri: unadjusted", "StartContainer"},
		},
		"start, by the guard": {
			func(_ *Plugin, g *Guard) error {
				return g.StartContainer(context.Background(), testPod(), testContainer(token))
			}, "unadjusted", []string{"refused by guard: unadjusted", "StartContainer"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			log, lines := jsonLog()
			observer := &told{}
			b := newBed(t)
			b.Log = log
			p, g := NewPlugin(b.Adjuster, nil), NewGuard(ocispec.Linux, log)
			p.Observer, g.Observer = observer, observer
			err := test.do(p, g)
			if err == nil {
				t.Fatal("not refused")
			}
			want := []map[string]string{{
				"level": "error", "msg": "container refused", "pod": "default/web", "container": "main", "reason": test.reason, "error": err.Error(),
			}}
			if diff := cmp.Diff(want, lines()); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(test.want, observer.events); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestPluginIsNotAliveWhenEveryHookHangs(t *testing.T) {
	t.Parallel()
	p := NewPlugin(newBed(t).Adjuster, nil)
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
