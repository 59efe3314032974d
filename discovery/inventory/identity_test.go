package inventory

import (
	"strings"
	"testing"
)

func TestUUIDAndPCIAddress(t *testing.T) {
	t.Parallel()
	const head = "apiVersion: directx.microsoft.com/v1alpha1\nkind: Inventory\ndevices:\n"
	devices, err := Parse("f", []byte(head+"  - {instanceID: A, uuid: GPU-8932f937-d72c-4106-c12f-20bd9faed9f6, pciAddress: '0001:1b:03.1'}\n  - {instanceID: B}\n"))
	if err != nil {
		t.Fatal(err)
	}
	segment, bus, device, function, ok := devices[0].PCIPlace()
	if devices[0].UUID != "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6" || !ok || segment != 1 || bus != 0x1B || device != 3 || function != 1 {
		t.Errorf("%+v at %X:%X:%X.%X", devices[0], segment, bus, device, function)
	}
	if _, _, _, _, ok := devices[1].PCIPlace(); ok || devices[1].UUID != "" {
		t.Errorf("%+v has what nobody said", devices[1])
	}
	for fields, want := range map[string]string{
		"uuid: 0":     "must be a string",
		"uuid: GPU-1": "is not a GPU's UUID",
		"uuid: GPU-8932f937-d72c-4106-c12f-20bd9faed9f6,GPU-8932f937-d72c-4106-c12f-20bd9faed9f6": "is not a GPU's UUID",
		"uuid: MIG-8932f937-d72c-4106-c12f-20bd9faed9f6":                                          "is not a GPU's UUID",
		"pciAddress: '1B:00.0'":      "is not a place",
		"pciAddress: '0000:1B:20.0'": "is not a place",
		"pciAddress: '0000:1B:00.8'": "is not a place",
		"pciAddress: '0000.1B.00.0'": "is not a place",
		"pciAddress: 12":             "must be a string",
	} {
		if _, err := Parse("f", []byte(head+"  - instanceID: A\n    "+fields+"\n")); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want an error that says %q", fields, err, want)
		}
	}
	for key, value := range map[string]string{"uuid": "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", "pciAddress": "'0000:1B:00.0'"} {
		text := head + "  - {instanceID: A, " + key + ": " + value + "}\n  - {instanceID: B, " + key + ": " + value + "}\n"
		if _, err := Parse("f", []byte(text)); err == nil || !strings.Contains(err.Error(), "must be unique") {
			t.Errorf("the same %s twice: %v", key, err)
		}
	}
}
