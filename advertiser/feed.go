package advertiser

import "sync"

// feed hands the newest pool of one resource to whoever serves it.
type feed struct {
	mu      sync.Mutex
	pool    *pool
	changed chan struct{}
}

func newFeed(p *pool) *feed { return &feed{pool: p, changed: make(chan struct{})} }

// current returns the pool, and a channel that is closed when there is a newer
// one.
func (f *feed) current() (*pool, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.pool, f.changed
}

func (f *feed) publish(p *pool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pool = p
	close(f.changed)
	f.changed = make(chan struct{})
}
