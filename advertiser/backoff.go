package advertiser

import "time"

// backoff is how long to wait after each of a row of failures: twice as long
// every time, up to a limit, and each time a random part less, so that what
// failed together does not try again together.
type backoff struct {
	first, limit time.Duration
	// random returns a number in [0, 1).
	random func() float64

	current time.Duration
}

// next returns the time to wait, at least half of it certain.
func (b *backoff) next() time.Duration {
	b.current = min(max(2*b.current, b.first), b.limit)
	return b.current - time.Duration(b.random()*float64(b.current)/2)
}

// reset begins a new row.
func (b *backoff) reset() { b.current = 0 }
