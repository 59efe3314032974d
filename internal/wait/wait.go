// Package wait waits for a time, or until a context ends.
package wait

import (
	"context"
	"time"
)

// For waits for a duration and returns true, or returns false when ctx ends.
func For(ctx context.Context, duration time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(duration):
		return true
	}
}
