package advertiser

import (
	"context"
	"sync"
	"testing"
	"time"
)

func TestTrimmer(t *testing.T) {
	t.Parallel()
	trim := newTrimmer()
	freed := make(chan struct{}, 100)
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	group.Go(func() { trim.run(ctx, 20*time.Millisecond, func() { freed <- struct{}{} }) })
	trim.passed(largeBytes - 1)
	select {
	case <-freed:
		t.Error("memory is given back after a small message")
	case <-time.After(60 * time.Millisecond):
	}
	for range 3 {
		trim.passed(largeBytes)
		trim.passed(largeBytes)
		select {
		case <-freed:
		case <-time.After(patienceOfTests):
			t.Fatal("memory is not given back after a large message")
		}
	}
	cancel()
	group.Wait()
}
