// Package history is what a source of devices remembers from one look to the
// next: the last good list, and whether somebody who watches has been told of it.
package history

import (
	"reflect"

	"directx-nri/discovery"
)

// List is what a look has led to. It is never changed, only followed by another.
type List struct {
	// Devices is the last good list. It is shared: hand out [List.Answer] only.
	Devices []discovery.Device
	// Generation counts the changes of Devices. 0: there never was a good list.
	Generation int
	// Err is why the last look had no list.
	Err error

	// first is the generation that the first look came to, 0 or 1.
	first int
}

// Next returns what follows l, nil before the first look, after a look that came
// to devices or to err.
func (l *List) Next(devices []discovery.Device, err error) List {
	next := List{Err: err}
	if l != nil {
		next.Devices, next.Generation, next.first = l.Devices, l.Generation, l.first
	}
	if err == nil && (next.Generation == 0 || !reflect.DeepEqual(next.Devices, devices)) {
		next.Devices = devices
		next.Generation++
	}
	if l == nil {
		next.first = next.Generation
	}
	return next
}

// Answer returns copies of the devices, and Err when there never was a good list.
func (l *List) Answer() ([]discovery.Device, error) {
	if l.Generation == 0 {
		return nil, l.Err
	}
	out := make([]discovery.Device, len(l.Devices))
	for i, d := range l.Devices {
		out[i] = d.Clone()
	}
	return out, nil
}

// Told is which list somebody who watches was told of.
type Told struct {
	// generation is -1 when it was none.
	generation int
}

// Since returns what somebody knows who begins to watch when l is the last list,
// nil before the first look: no more than what the first look came to, for whoever
// asked then may have acted on it.
func Since(l *List) Told {
	if l == nil {
		return Told{-1}
	}
	return Told{l.first}
}

// News tells whether l is another list than was told of last, and counts it as
// told. What the first look comes to is no news.
func (t *Told) News(l *List) bool {
	news := t.generation >= 0 && t.generation != l.Generation
	t.generation = l.Generation
	return news
}
