package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"time"

	"directx-nri/cmd/dxctl/doctor"
	"directx-nri/discovery"
)

// deviceEvent is a line of --watch. The names of its fields are stable.
type deviceEvent struct {
	Time time.Time `json:"time"`
	// Event is "listed", "added", "removed" or "changed".
	Event  string       `json:"event"`
	Device deviceReport `json:"device"`
	// Changes are the fields of a changed device.
	Changes []deviceChange `json:"changes,omitempty"`
}

// deviceChange is a field of [deviceReport] and its values, null for none.
type deviceChange struct {
	Field string `json:"field"`
	From  any    `json:"from"`
	To    any    `json:"to"`
}

const (
	eventListed  = "listed"
	eventAdded   = "added"
	eventRemoved = "removed"
	eventChanged = "changed"
)

// follow prints devices, and then the changes of source until ctx ends.
func (o *devicesOptions) follow(ctx context.Context, source discovery.Source, devices []discovery.Device, stdout, stderr io.Writer) error {
	before := reportDevices(devices, o.rules)
	if o.output == outputJSON {
		var events []deviceEvent
		for _, r := range before {
			events = append(events, deviceEvent{Event: eventListed, Device: r})
		}
		if err := o.printEvents(stdout, events); err != nil {
			return err
		}
	} else if err := o.list(stdout, stderr, devices); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	changed, ended := make(chan struct{}, 1), make(chan error, 1)
	go func() {
		ended <- source.Watch(ctx, func() {
			select {
			case changed <- struct{}{}:
			default:
			}
		})
	}()
	stop := func() error {
		cancel()
		return <-ended
	}
	var err error
	for err == nil {
		select {
		case <-ctx.Done():
			_ = stop()
			return nil
		case err = <-ended:
			interrupted := ctx.Err() != nil
			cancel()
			if interrupted {
				return nil
			}
			return errors.Join(err, errors.New("the watch of the GPUs ended unexpectedly"))
		case <-changed:
			if devices, err = source.Devices(ctx); err == nil {
				now := reportDevices(devices, o.rules)
				err = o.printEvents(stdout, deviceEvents(before, now))
				before = now
			}
		}
	}
	_ = stop()
	return err
}

// deviceEvents returns the differences of two lists: first the removed devices.
func deviceEvents(before, now []deviceReport) []deviceEvent {
	find := func(list []deviceReport, id string) int {
		return slices.IndexFunc(list, func(r deviceReport) bool { return strings.EqualFold(r.InstanceID, id) })
	}
	var events []deviceEvent
	for _, r := range before {
		if find(now, r.InstanceID) < 0 {
			events = append(events, deviceEvent{Event: eventRemoved, Device: r})
		}
	}
	for _, r := range now {
		i := find(before, r.InstanceID)
		if i < 0 {
			events = append(events, deviceEvent{Event: eventAdded, Device: r})
		} else if changes := deviceChanges(before[i], r); len(changes) > 0 {
			events = append(events, deviceEvent{Event: eventChanged, Device: r, Changes: changes})
		}
	}
	return events
}

// deviceChanges returns the fields that differ, by their JSON names.
func deviceChanges(old, now deviceReport) []deviceChange {
	var changes []deviceChange
	from, to := reflect.ValueOf(old), reflect.ValueOf(now)
	for i := range from.NumField() {
		name, _, _ := strings.Cut(from.Type().Field(i).Tag.Get("json"), ",")
		if a, b := fieldValue(from.Field(i)), fieldValue(to.Field(i)); !reflect.DeepEqual(a, b) {
			changes = append(changes, deviceChange{name, a, b})
		}
	}
	return changes
}

// fieldValue returns the value of a field, nil if it has none.
func fieldValue(v reflect.Value) any {
	switch {
	case v.Kind() == reflect.Pointer && v.IsNil(), v.Kind() == reflect.Slice && v.Len() == 0:
		return nil
	case v.Kind() == reflect.Pointer:
		return v.Elem().Interface()
	}
	return v.Interface()
}

func (o *devicesOptions) printEvents(stdout io.Writer, events []deviceEvent) error {
	encoder := json.NewEncoder(stdout)
	encoder.SetEscapeHTML(false)
	for _, event := range events {
		event.Time = o.now()
		var err error
		if o.output == outputJSON {
			err = encoder.Encode(event)
		} else {
			_, err = fmt.Fprintln(stdout, doctor.Printable(event.String()))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (e deviceEvent) String() string {
	line := fmt.Sprintf("%s  %-7s  GPU %d, %s", e.Time.Format(time.DateTime), e.Event, e.Device.Index, e.Device.name())
	if e.Device.Description != "" {
		line += " (" + e.Device.Description + ")"
	}
	if e.Event == eventAdded {
		line += ": " + e.Device.Health
	}
	for i, change := range e.Changes {
		separator := ", "
		if i == 0 {
			separator = ": "
		}
		line += separator + change.String()
	}
	return line
}

func (c deviceChange) String() string {
	if _, ok := c.From.([]fileReport); ok {
		return c.Field + " changed"
	}
	if _, ok := c.To.([]fileReport); ok {
		return c.Field + " changed"
	}
	text := func(v any) string {
		if v == nil || v == "" {
			return "none"
		}
		return fmt.Sprint(v)
	}
	return fmt.Sprintf("%s %s → %s", c.Field, text(c.From), text(c.To))
}
