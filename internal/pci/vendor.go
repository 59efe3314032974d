// Package pci has the vendors of PCI devices.
package pci

import (
	"bytes"
	"cmp"
	"fmt"
	"strconv"
	"strings"
)

// Vendor is a PCI vendor ID, 0 if unknown.
// https://pcisig.com/membership/member-companies
type Vendor uint16

// PCI vendor IDs of the vendors with DirectX drivers.
const (
	VendorAMD       Vendor = 0x1002
	VendorNVIDIA    Vendor = 0x10DE
	VendorMicrosoft Vendor = 0x1414
	VendorQualcomm  Vendor = 0x5143
	VendorIntel     Vendor = 0x8086
)

// VendorNames returns the names of vendors.
func VendorNames() map[Vendor]string {
	return map[Vendor]string{
		VendorAMD: "AMD", VendorIntel: "Intel", VendorMicrosoft: "Microsoft", VendorNVIDIA: "NVIDIA", VendorQualcomm: "Qualcomm",
	}
}

// Name returns the vendor's name for messages.
func (v Vendor) Name() string {
	if v == 0 {
		return "unknown"
	}
	return cmp.Or(VendorNames()[v], v.String())
}

// String returns the vendor as it is written in config.yaml.
func (v Vendor) String() string {
	return cmp.Or(strings.ToLower(VendorNames()[v]), fmt.Sprintf("0x%04X", uint16(v)))
}

// MarshalText implements [encoding.TextMarshaler].
func (v Vendor) MarshalText() ([]byte, error) { return []byte(v.String()), nil }

// UnmarshalText implements [encoding.TextUnmarshaler]. It accepts a vendor's name or number.
func (v *Vendor) UnmarshalText(text []byte) error {
	for vendor := range VendorNames() {
		if vendor.String() == string(text) {
			*v = vendor
			return nil
		}
	}
	n, err := strconv.ParseUint(string(text), 0, 16)
	*v = Vendor(n)
	return err
}

// UnmarshalJSON implements [json.Unmarshaler]: it accepts a number outside of quotes, too.
func (v *Vendor) UnmarshalJSON(text []byte) error {
	return v.UnmarshalText(bytes.Trim(text, `"`))
}

// VendorOf returns the vendor in a PnP ID of the PCI bus (`PCI\VEN_10DE&…`), 0 if there is none.
// https://learn.microsoft.com/windows-hardware/drivers/install/identifiers-for-pci-devices
func VendorOf(id string) Vendor {
	const prefix, end = `PCI\VEN_`, len(`PCI\VEN_10DE`)
	if len(id) < end || !strings.EqualFold(id[:len(prefix)], prefix) || len(id) > end && id[end] != '&' && id[end] != '\\' {
		return 0
	}
	vendor, _ := strconv.ParseUint(id[len(prefix):end], 16, 16) // 0 if these are not digits
	return Vendor(vendor)
}
