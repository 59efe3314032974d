//go:build e2e && linux

package bed

import (
	"fmt"
	"math/rand/v2"
	"net"
	"sync/atomic"
	"testing"
)

// Ports of the tests' servers are below those that the kernel assigns by itself
// (ip_local_port_range), so no other connection takes one between the choice of a
// port and its use.
const (
	firstPort = 20000
	lastPort  = 32000
)

var nextPort atomic.Int64

// FreeAddress returns a TCP address of 127.0.0.1 that nothing listens at and that
// it did not return before.
func FreeAddress(t testing.TB) string {
	t.Helper()
	nextPort.CompareAndSwap(0, rand.Int64N(lastPort-firstPort))
	for range lastPort - firstPort {
		port := firstPort + nextPort.Add(1)%(lastPort-firstPort)
		listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			continue
		}
		if err := listener.Close(); err != nil {
			t.Fatal(err)
		}
		return listener.Addr().String()
	}
	t.Fatal("there is no free port")
	return ""
}
