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

func TestVersionString(t *testing.T) {
	t.Parallel()
	for want, v := range map[string]Version{
		"Windows Server 2022 Datacenter 21H2 (build 20348.2113)": {20348, 2113, product("Windows Server 2022 Datacenter", 20348), "21H2"},
		"Windows (build 17763.0)":                                {Build: 17763},
		"Windows 10 Pro (build 19045.0)":                         {Build: 19045, Product: product("Windows 10 Pro", 19045)},
		"Windows 11 Pro (build 22631.0)":                         {Build: 22631, Product: product("Windows 10 Pro", 22631)},
	} {
		if got := v.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
