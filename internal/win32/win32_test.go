package win32

import "testing"

func TestHRESULTError(t *testing.T) {
	t.Parallel()
	if err := hresultError(1); err != nil { // S_FALSE
		t.Error(err)
	}
	if err := hresultError(-2147024809); err == nil || err.Error() != "HRESULT 0x80070057" {
		t.Error(err)
	}
}
