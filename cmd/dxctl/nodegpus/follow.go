package nodegpus

import (
	"context"
	"time"
)

// Follow calls do now and every 5 seconds, until ctx ends or do returns an error.
func Follow(ctx context.Context, do func() error) error {
	for {
		err := do()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(5 * time.Second):
		}
	}
}
