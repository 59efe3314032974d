package advertiser

import "sync"

// broadcaster has the newest pool of one resource.
type broadcaster struct {
	mu      sync.Mutex
	pool    *pool
	changed chan struct{}
}

func newBroadcaster(p *pool) *broadcaster {
	return &broadcaster{pool: p, changed: make(chan struct{})}
}

// current returns the pool, and a channel that is closed when there is a newer one.
func (b *broadcaster) current() (*pool, <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.pool, b.changed
}

func (b *broadcaster) publish(p *pool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pool = p
	close(b.changed)
	b.changed = make(chan struct{})
}

// signal puts a value into a channel of capacity one, unless it has one.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
