package win32

import (
	"strings"
	"testing"
)

func TestNVMLBusID(t *testing.T) {
	t.Parallel()
	if got, want := NVMLBusID(1, 0x1b, 3, 7), "00000001:1B:03.7"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestNVMLResults(t *testing.T) {
	t.Parallel()
	if err := nvmlError(0); err != nil {
		t.Error(err)
	}
	if err := nvmlError(9); err == nil || !strings.Contains(err.Error(), "NVML error 9") {
		t.Errorf("%v", err)
	}
	buffer := make([]byte, nvmlUUIDSize)
	copy(buffer, "GPU-1")
	if got := cString(buffer); got != "GPU-1" {
		t.Errorf("%q", got)
	}
	if got := cString([]byte("full")); got != "full" {
		t.Errorf("%q", got)
	}
}
