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

	"directx-nri/discovery"
	"directx-nri/internal/cli"
)

// deviceEvent is a line of --watch. The names of its fields are stable.
type deviceEvent struct {
	Time time.Time `json:"time"`
	// Event is "listed", "added", "removed" or "changed".
	Event  string       `json:"event"`
	Device deviceReport `json:"device"`
	// Changes are the names of the fields that differ, of a changed device.
	Changes []string `json:"changes,omitempty"`
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
	defer cancel()
	changed, ended := make(chan struct{}, 1), make(chan error, 1)
	go func() {
		ended <- source.Watch(ctx, func() {
			select {
			case changed <- struct{}{}:
			default:
			}
		})
	}()
	for {
		select {
		case err := <-ended:
			if ctx.Err() != nil {
				return nil
			}
			return errors.Join(err, errors.New("the watch of the GPUs ended unexpectedly"))
		case <-changed:
			devices, err := source.Devices(ctx)
			if err != nil {
				return err
			}
			now := reportDevices(devices, o.rules)
			if err := o.printEvents(stdout, deviceEvents(before, now)); err != nil {
				return err
			}
			before = now
		}
	}
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

// deviceChanges returns the JSON names of the fields that differ.
func deviceChanges(old, now deviceReport) []string {
	var changes []string
	from, to := reflect.ValueOf(old), reflect.ValueOf(now)
	for i := range from.NumField() {
		if !reflect.DeepEqual(from.Field(i).Interface(), to.Field(i).Interface()) {
			name, _, _ := strings.Cut(from.Type().Field(i).Tag.Get("json"), ",")
			changes = append(changes, name)
		}
	}
	return changes
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
			_, err = fmt.Fprintln(stdout, cli.Printable(event.String()))
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
	if e.Event != eventRemoved {
		line += ": " + e.Device.Health
	}
	if len(e.Changes) > 0 {
		line += "; changed: " + strings.Join(e.Changes, ", ")
	}
	return line
}
