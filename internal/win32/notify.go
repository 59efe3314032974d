package win32

import "unsafe"

// notifyFilter is CM_NOTIFY_FILTER for a device interface class, with the FilterType
// CM_NOTIFY_FILTER_TYPE_DEVICEINTERFACE, which is 0. Other members of its union determine its alignment
// (a handle) and its size (an instance ID of MAX_DEVICE_ID_LEN).
// https://learn.microsoft.com/windows/win32/api/cfgmgr32/ns-cfgmgr32-cm_notify_filter
type notifyFilter struct {
	_          [0]uint64
	Size       uint32
	Flags      uint32
	FilterType uint32
	Reserved   uint32
	Interface  GUID
	_          [2*200 - 16]byte
}

func newNotifyFilter(class GUID) *notifyFilter {
	return &notifyFilter{Size: uint32(unsafe.Sizeof(notifyFilter{})), Interface: class}
}
