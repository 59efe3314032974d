package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"directx-nri/advertiser/resources"
	"directx-nri/cmd/dxctl/terminal"
	"directx-nri/discovery"
)

// deviceEvent is what --watch tells. The names of its fields are for scripts, and
// stay.
type deviceEvent struct {
	Time time.Time `json:"time"`
	// Event is listed, came, went or changed.
	Event  string       `json:"event"`
	Device deviceReport `json:"device"`
	// Changes are those of a device that changed. Its index is one of its fields.
	Changes []deviceChange `json:"changes,omitempty"`
}

// deviceChange is a field of [deviceReport] that has another value than before,
// null where it has none.
type deviceChange struct {
	Field string `json:"field"`
	From  any    `json:"from"`
	To    any    `json:"to"`
}

// The events.
const (
	eventListed  = "listed"
	eventCame    = "came"
	eventWent    = "went"
	eventChanged = "changed"
)

// follow tells the list, and then of each change until ctx ends.
func (o *devicesOptions) follow(ctx context.Context, stdout, stderr io.Writer) error {
	log := &muted{to: stderr} // A failure to begin is told once, as the error.
	source, err := o.begin(stderr, log)
	if err != nil {
		return err
	}
	before, err := source.Devices(ctx)
	if err != nil {
		return err
	}
	log.unmuted.Store(true)
	if err := o.tellBegin(stdout, stderr, before); err != nil {
		return err
	}

	watched, cancel := context.WithCancel(ctx)
	changed, ended := make(chan struct{}, 1), make(chan struct{})
	var watchErr error
	go func() {
		defer close(ended)
		watchErr = source.Watch(watched, func() {
			select {
			case changed <- struct{}{}:
			default: // One look tells all changes so far.
			}
		})
	}()
	defer func() { cancel(); <-ended }()

	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ended:
			if watchErr == nil {
				watchErr = errors.New("changes of the GPUs are not told any more; start it again")
			}
			return notEnd(ctx, watchErr)
		case <-changed:
			now, err := source.Devices(ctx)
			if err == nil {
				err = o.tellEvents(stdout, deviceEvents(o.assign(before), o.assign(now)))
			}
			if err != nil {
				return notEnd(ctx, err)
			}
			before = now
		}
	}
}

// muted is a writer that passes nothing on until it is unmuted.
type muted struct {
	to      io.Writer
	unmuted atomic.Bool
}

func (m *muted) Write(p []byte) (int, error) {
	if !m.unmuted.Load() {
		return len(p), nil
	}
	return m.to.Write(p)
}

// notEnd returns err, and nil when ctx has ended: a person who interrupts has seen
// enough.
func notEnd(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func (o *devicesOptions) tellBegin(stdout, stderr io.Writer, devices []discovery.Device) error {
	if o.output != outputJSON {
		return o.tellAll(stdout, stderr, devices)
	}
	events := make([]deviceEvent, len(devices))
	for i, a := range o.assign(devices) {
		events[i] = deviceEvent{Event: eventListed, Device: reportDevice(i, a)}
	}
	return o.tellEvents(stdout, events)
}

// deviceEvents tells what happened between two lists: first what went, then what
// came or changed, in the order of the new list.
func deviceEvents(before, now []resources.Assigned) []deviceEvent {
	var events []deviceEvent
	for i, a := range before {
		same := func(other resources.Assigned) bool {
			return strings.EqualFold(other.Device.InstanceID, a.Device.InstanceID)
		}
		if !slices.ContainsFunc(now, same) {
			events = append(events, deviceEvent{Event: eventWent, Device: reportDevice(i, a)})
		}
	}
	was := map[string]deviceReport{}
	for i, a := range before {
		was[strings.ToLower(a.Device.InstanceID)] = reportDevice(i, a)
	}
	for i, a := range now {
		report := reportDevice(i, a)
		old, there := was[strings.ToLower(a.Device.InstanceID)]
		if !there {
			events = append(events, deviceEvent{Event: eventCame, Device: report})
			continue
		}
		if changes := deviceChanges(old, report); len(changes) > 0 {
			events = append(events, deviceEvent{Event: eventChanged, Device: report, Changes: changes})
		}
	}
	return events
}

// deviceChanges returns the fields that differ, by their names in JSON.
func deviceChanges(old, report deviceReport) []deviceChange {
	var changes []deviceChange
	from, to := reflect.ValueOf(old), reflect.ValueOf(report)
	for i := range from.NumField() {
		name, _, _ := strings.Cut(from.Type().Field(i).Tag.Get("json"), ",")
		a, b := plain(from.Field(i)), plain(to.Field(i))
		if !reflect.DeepEqual(a, b) {
			changes = append(changes, deviceChange{name, a, b})
		}
	}
	return changes
}

// plain returns a field's value, nil for one that has none.
func plain(v reflect.Value) any {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			return nil
		}
		return v.Elem().Interface()
	case reflect.Slice:
		if v.Len() == 0 {
			return nil
		}
	}
	return v.Interface()
}

// tellEvents prints events, which happened now.
func (o *devicesOptions) tellEvents(stdout io.Writer, events []deviceEvent) error {
	now := o.now()
	encoder := json.NewEncoder(stdout)
	encoder.SetEscapeHTML(false)
	to := terminal.Of(stdout, os.Getenv)
	for _, event := range events {
		event.Time = now
		var err error
		if o.output == outputJSON {
			err = encoder.Encode(event)
		} else {
			_, err = fmt.Fprintln(stdout, event.line(to))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// line tells a person.
func (e deviceEvent) line(to terminal.Terminal) string {
	style := map[string]terminal.Style{eventCame: terminal.Good, eventWent: terminal.Bad, eventChanged: terminal.Warn}[e.Event]
	name := e.Device.LocationPath
	if name == "" {
		name = e.Device.InstanceID
	}
	if e.Device.Description != "" {
		name += " (" + e.Device.Description + ")"
	}
	line := fmt.Sprintf("%s  %s  %s", e.Time.Format(time.DateTime), to.Paint(style, fmt.Sprintf("%-7s", e.Event)), terminal.Printable(name))
	var more []string
	switch e.Event {
	case eventCame:
		more = []string{fmt.Sprintf("index %d", e.Device.Index), e.Device.Health}
	case eventWent:
		more = []string{fmt.Sprintf("it was index %d", e.Device.Index)}
	}
	for _, change := range e.Changes {
		more = append(more, change.String())
	}
	return line + ": " + terminal.Printable(strings.Join(more, ", "))
}

func (c deviceChange) String() string {
	from, to := inWords(c.From), inWords(c.To)
	if from == to {
		return c.Field + " is another"
	}
	return fmt.Sprintf("%s %s → %s", c.Field, from, to)
}

// inWords names a value shortly.
func inWords(v any) string {
	switch v := v.(type) {
	case nil, string:
		if v == nil || v == "" {
			return "none"
		}
	case []fileReport:
		return fmt.Sprintf("%d file(s)", len(v))
	case []string:
		return strings.Join(v, "; ")
	}
	return fmt.Sprint(v)
}
