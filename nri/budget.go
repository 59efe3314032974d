package nri

import (
	"sync"
	"time"
)

// hookBudget is how long decisions may take. The runtime drops a plugin that has not
// answered a hook within 2 s and starts the container without it, where the interlock
// fails it with a message that does not name the cause.
const hookBudget = 1200 * time.Millisecond

// budget is the time that decisions may take together: the runtime calls one hook at a time,
// so a container that requests nothing can wait for all hooks before its own. The time
// between decisions restores it.
type budget struct {
	size time.Duration

	mu    sync.Mutex
	used  time.Duration
	since time.Time // used is as of then
}

// left returns how long a decision that begins now may take.
func (b *budget) left(now time.Time) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used = max(0, b.used-max(0, now.Sub(b.since)))
	b.since = now
	return b.size - b.used
}

// use subtracts the time of a decision.
func (b *budget) use(began, ended time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used += ended.Sub(began)
	b.since = ended
}
