package paths

import "path/filepath"

// The files of the state directory, which only root, or SYSTEM and Administrators, can write. Each is
// replaced as a whole, except for the log. The packages that are named here have the formats.
const (
	// PolicyFile is the node policy, in JSON with a format number (package policy). The advertiser and
	// 'dxctl config apply' write it. The NRI plugin, the shim and dxctl read it.
	PolicyFile = "policy.json"
	// InventoryFile is the compiled inventory (discovery/node, DeviceList), if the policy has one. The
	// advertiser and 'dxctl config apply' write it. All programs read it, and then query no driver.
	InventoryFile = "devices.json"
	// DiscoveredFile is the list of GPUs that the driver of a Linux node gave last, in the format of
	// [InventoryFile]. The advertiser and 'dxctl config apply' write it. The NRI plugin, the shim and
	// dxctl read it instead of querying the driver.
	DiscoveredFile = "discovered.json"
	// AllocationsDir has the allocation records and their bindings, in JSON, and a lock (package
	// allocation). The advertiser writes and removes records. The NRI plugin and the
	// shim read them and add bindings. dxctl reads both.
	AllocationsDir = "allocations"
	// BypassFile is the reason, as plain text, why containerd does not run the shim for pods' containers
	// (shim/shimfile). The shim writes it. The advertiser and dxctl read it.
	BypassFile = "bypass"
	// ShimLogFile is the shim's log, in lines of text. The shim appends, and begins a second file with the
	// suffix .1 when it is large (package shim). dxctl reads it.
	ShimLogFile = "shim.log"
	// DiversionLockFile is empty. Programs that change the diversion lock it (package shim/diversion), in the default
	// state directory, because 'dxctl runtime uninstall' has no other.
	DiversionLockFile = "diversion.lock"
	// DxctlFile is a copy of dxctl, on Windows nodes with a GPU. The advertiser writes and removes it. Pods run it.
	DxctlFile = "bin/dxctl.exe"
	// VerifyFile is the last result of 'dxctl verify', in lines of text. 'dxctl verify' writes it, and 'dxctl
	// doctor' reads it.
	VerifyFile = "verify.txt"
)

// Allocations returns the directory of the allocation records in a state directory.
func Allocations(stateDir string) string { return filepath.Join(stateDir, AllocationsDir) }
