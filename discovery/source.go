package discovery

import "context"

// Source lists a node's devices and tells of changes. Its methods may be
// called by several goroutines at once.
type Source interface {
	// Devices returns the devices as they are now, in a stable order. It
	// never answers from something that it could know to be out of date.
	//
	// A source that has answered once goes on to answer: when it can no longer
	// read where its devices come from, it keeps the last good list and logs
	// why. An error means that there never was a good list.
	Devices(ctx context.Context) ([]Device, error)

	// Watch calls changed after each change of the list, until ctx ends or
	// the source can watch no more; the caller owns the goroutine that it
	// blocks. Changes close to each other may be told as one. changed is
	// called from one goroutine at a time, and must not block.
	Watch(ctx context.Context, changed func()) error
}

// Finder is a [Source] that can look single devices up for less than the whole
// list costs. The runtime shim asks it at each start of a container that has an
// allocation.
//
// It can never act on stale data, because it keeps none: each call reads what it
// answers anew.
type Finder interface {
	// Find returns those of the devices with the given instance IDs that are
	// present now, in any order, with all that a container is given of them, with
	// their health, and with whether they are of any kind at all. Of which kind may
	// be missing.
	Find(ctx context.Context, instanceIDs []string) ([]Device, error)
}

// ByClass returns source as it is on a node whose containers are given GPUs by
// their interface class: see [Device.ByClass]. It is that while on says so, which
// is asked at each call. It is a [Finder] if source is one.
func ByClass(source Source, on func() bool) Source {
	s := byClass{Source: source, on: on}
	if finder, ok := source.(Finder); ok {
		return byClassFinder{s, finder}
	}
	return s
}

type byClass struct {
	Source
	on func() bool
}

// Devices implements [Source].
func (s byClass) Devices(ctx context.Context) ([]Device, error) {
	devices, err := s.Source.Devices(ctx)
	return s.all(devices), err
}

func (s byClass) all(devices []Device) []Device {
	if s.on() {
		for i, d := range devices {
			devices[i] = d.ByClass()
		}
	}
	return devices
}

type byClassFinder struct {
	byClass
	finder Finder
}

// Find implements [Finder].
func (s byClassFinder) Find(ctx context.Context, instanceIDs []string) ([]Device, error) {
	devices, err := s.finder.Find(ctx, instanceIDs)
	return s.all(devices), err
}
