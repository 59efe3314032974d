package allocation

// The interlock is part of the advertiser's answer to Allocate. No runtime starts
// a container that still has it: runc refuses a mount at a new name inside /proc,
// and runhcs refuses a device of a type that it does not support. The NRI plugin
// and the runtime shim remove it when they make the container's edits.
const (
	// InterlockMount is the destination of a bind mount of [InterlockSource] in
	// Linux containers.
	InterlockMount = "/proc/directx-nri-did-not-adjust-this-container"
	// InterlockSource is the source of that mount.
	InterlockSource = "/dev/null"
	// InterlockDeviceType and InterlockDeviceID are the type and ID of a Windows
	// device. In the kubelet's answer it is written TYPE://ID.
	InterlockDeviceType = "directx-nri"
	InterlockDeviceID   = "not-started-through-the-runtime-shim"
)
