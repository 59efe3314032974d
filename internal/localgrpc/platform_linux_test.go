package localgrpc

import (
	"net"
	"os"
	"path/filepath"
	"testing"
)

func TestServerPID(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "s")
	if pid, err := ServerPID(t.Context(), socket); err == nil {
		t.Errorf("no socket: process %d", pid)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if pid, err := ServerPID(t.Context(), "unix://"+socket); err != nil || pid != os.Getpid() {
		t.Errorf("process %d, %v", pid, err)
	}
}
