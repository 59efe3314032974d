package advertiser

import (
	"context"
	"runtime"
	"runtime/debug"
	"time"
)

// largeBytes is the size from which a message is worth giving memory back
// after.
const largeBytes = 128 << 10

// trimQuiet is how long after the last large message memory is given back: they
// come in bursts, and gRPC still sends one after we have handed it over.
const trimQuiet = 100 * time.Millisecond

// trimmer gives memory back to the system after large messages. With thousands
// of replicas the kubelet's lists are megabytes, which come once in a while and
// would stay with the process for minutes.
type trimmer struct {
	large chan struct{}
}

func newTrimmer() *trimmer { return &trimmer{large: make(chan struct{}, 1)} }

// passed tells of a message with texts of n bytes in it.
func (t *trimmer) passed(n int) {
	if n >= largeBytes {
		signal(t.large)
	}
}

// run gives memory back, by free, until ctx ends.
func (t *trimmer) run(ctx context.Context, quiet time.Duration, free func()) {
	timer := time.NewTimer(0)
	<-timer.C
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.large:
			timer.Reset(quiet)
		case <-timer.C:
			free()
		}
	}
}

// freeMemory collects twice: what a sync.Pool has, and gRPC keeps its buffers
// in one, survives the first collection.
func freeMemory() {
	runtime.GC()
	debug.FreeOSMemory()
}

func totalLength(texts []string) (n int) {
	for _, text := range texts {
		n += len(text)
	}
	return n
}
