package advertiser

import (
	"context"
	"sync"
)

// doors are the endpoints that are open, by the names of their sockets. They
// come and go with the offers.
type doors struct {
	mu sync.Mutex
	// run runs what serves an endpoint, and returns what ends it; nil before
	// start.
	run  func(serve func(context.Context) error) (stop func())
	open map[string]*door
	// closing has what is closed when an endpoint that was told to end has ended.
	closing map[string]<-chan struct{}
}

type door struct {
	endpoint *endpoint
	stop     func()
	ended    chan struct{}
}

func newDoors() *doors {
	return &doors{open: map[string]*door{}, closing: map[string]<-chan struct{}{}}
}

// start has run serve every endpoint that was added and will be.
func (d *doors) start(run func(serve func(context.Context) error) (stop func())) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.run = run
	for _, opened := range d.open {
		d.serve(opened)
	}
}

// add opens e, of which there must be none of the same name. It waits for none
// to end that had it before: that is done before e listens.
func (d *doors) add(e *endpoint) {
	d.mu.Lock()
	defer d.mu.Unlock()
	opened := &door{endpoint: e, ended: make(chan struct{})}
	d.open[e.name] = opened
	if d.run != nil {
		d.serve(opened)
	}
}

func (d *doors) serve(opened *door) {
	before := d.closing[opened.endpoint.name]
	opened.stop = d.run(func(ctx context.Context) error {
		defer close(opened.ended)
		if before != nil {
			select {
			case <-before:
			case <-ctx.Done():
				return nil
			}
		}
		return opened.endpoint.run(ctx)
	})
}

// remove has the endpoint of that name end, and does not wait for it. It must
// not be called before start.
func (d *doors) remove(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if opened := d.open[name]; opened != nil {
		delete(d.open, name)
		d.closing[name] = opened.ended
		opened.stop()
	}
}

// has tells whether a socket of that name is one of the doors'.
func (d *doors) has(name string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.open[name] != nil
}

// nudge tells all endpoints that something has changed in the folder.
func (d *doors) nudge() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, opened := range d.open {
		signal(opened.endpoint.nudge)
	}
}
