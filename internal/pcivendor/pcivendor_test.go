package pcivendor

import "testing"

func TestParse(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]uint16{
		"0x10DE": NVIDIA, "0X10de": NVIDIA, "4318": NVIDIA, "0o10336": NVIDIA, "0b1000011011110": NVIDIA,
		"0x8086": Intel, "32902": Intel, "0x1": 1, "1": 1, "0xFFFF": 0xFFFF, "65535": 0xFFFF,
		// Digits that are a known vendor's in hexadecimal.
		"1002": 0, "1414": 0, "5143": 0, "8086": 0, "10DE": 0,
		"0": 0, "0x0": 0, "0x10000": 0, "65536": 0, "-1": 0, "+4318": 0, "010336": 0, "0_1": 0, "00": 0, "4318.0": 0, "4.318e3": 0, "": 0, "0x": 0, "4318 x": 0, "nvidia": 0,
	} {
		if got, ok := Parse(text); got != want || ok != (want != 0) {
			t.Errorf("%q: 0x%04X, %t; want 0x%04X", text, got, ok, want)
		}
	}
}
