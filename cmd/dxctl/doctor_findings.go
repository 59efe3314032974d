package main

// The names of the checks.
const (
	CheckSetup        = "setup"        // directx-nri is set up
	CheckConfig       = "config"       // the configuration is valid and in force
	CheckWSL          = "wsl"          // WSL has GPUs and runs services
	CheckInventory    = "inventory"    // the GPUs can be listed
	CheckDevices      = "devices"      // the node has GPUs that containers can have
	CheckDriverFiles  = "files"        // the files of drivers exist
	CheckResources    = "resources"    // the configured resources match GPUs
	CheckHCS          = "hcs"          // Windows can assign GPUs as configured
	CheckContainerd   = "containerd"   // containerd answers and is recent enough
	CheckHandlers     = "handlers"     // pods of a runtime handler can have GPUs
	CheckShim         = "shim"         // containerd runs the runtime shim
	CheckNRI          = "nri"          // the NRI plugin is registered
	CheckKubelet      = "kubelet"      // the kubelet accepts device plugins
	CheckAdvertiser   = "advertiser"   // directx-advertiser answers
	CheckRegistration = "registration" // the kubelet offers the GPUs
	CheckRecords      = "records"      // the allocation records can be used
	CheckPermissions  = "permissions"  // only administrators can write the files
)

// The severities of findings.
const (
	Problem = "problem" // something is wrong
	Unknown = "unknown" // it could not be checked
)

// finding is a problem of a node. The names of its fields are stable.
type finding struct {
	Check    string `json:"check"`
	Severity string `json:"severity"`
	// Object is the file, device or runtime handler concerned.
	Object string `json:"object,omitempty"`
	// Files are all driver files that are missing.
	Files []string `json:"files,omitempty"`
	// Problem, Effect and Fix (the remedy) are a line each.
	Problem string `json:"problem"`
	Effect  string `json:"effect"`
	Fix     string `json:"fix"`
}

// findingKind has what all findings of one kind have in common: the check, the effect and the
// remedy. The remedy can have the placeholders {config}, {inventory}, {restart}
// and {remove}.
type findingKind struct{ check, effect, fix string }

// Parts of several kinds.
const (
	offersNoGPU     = "the node offers no GPU"
	noGPUAndNoStart = "the node offers no GPU, and containers that request one do not start"
	noPodStarts     = "pods with a GPU do not start"
	installShim     = "run 'dxctl runtime install'"
	restartWSL      = "; then run 'wsl --shutdown' in Windows"
	seeAdvertiser   = "see the log of directx-advertiser"
	noPodWithoutNRI = "pods with a GPU do not start while the NRI plugin is not registered"
)

// The kinds of findings.
//
//nolint:gochecknoglobals // These are constants.
var (
	nodeNotSetUp       = findingKind{CheckSetup, "no container can have a GPU", installShim + "; on a node of Kubernetes, install the chart"}
	kubernetesNotSetUp = findingKind{CheckSetup, "no container can have a GPU", "start the services of the package with systemctl, or install the chart"}

	policyUnusable = findingKind{CheckConfig, "containers that request a GPU do not start", "run 'dxctl config apply', or restart directx-advertiser"}
	configInvalid  = findingKind{CheckConfig, "the last valid configuration stays in force", "correct the file; 'dxctl config check' checks it"}
	configStale    = findingKind{CheckConfig, "the change has no effect", "run 'dxctl config apply', or start directx-advertiser"}

	wslDriverMissing    = findingKind{CheckWSL, offersNoGPU, "run 'wsl --update' in Windows, or build your kernel with CONFIG_DXGKRNL" + restartWSL}
	wslLibrariesMissing = findingKind{CheckWSL, offersNoGPU, "install the current driver of the GPU in Windows, and remove enabled=false from section [gpu] of /etc/wsl.conf" + restartWSL}
	wslSystemdStopped   = findingKind{CheckWSL, offersNoGPU, "set systemd=true in section [boot] of /etc/wsl.conf" + restartWSL}

	noGPUDriver = findingKind{CheckInventory, noGPUAndNoStart,
		"assign a GPU to this VM in Hyper-V (GPU-PV), and load the module dxgkrnl; for GPUs of another kind, run 'dxctl config apply --inventory FILE'"}
	inventoryInvalid   = findingKind{CheckInventory, noGPUAndNoStart, "correct the inventory"}
	gpusNotListed      = findingKind{CheckInventory, noGPUAndNoStart, "check the GPU's driver, and " + seeAdvertiser}
	noUsableGPU        = findingKind{CheckDevices, "there is nothing to offer", "install the GPU's driver, or complete the inventory"}
	gpuUnusable        = findingKind{CheckDevices, "no container gets it", "enable the device, install a driver that supports containers, or complete {inventory}"}
	gpuUnusableInVM    = findingKind{CheckDevices, "no container gets it", "update the GPU's driver in Windows, and restart the VM; in WSL, run 'wsl --shutdown' in Windows"}
	driverFilesMissing = findingKind{CheckDriverFiles, "containers get the GPU without them", "reinstall the driver, or correct {inventory}"}
	noMatchingResource = findingKind{CheckResources, offersNoGPU, "compare 'dxctl devices -o wide' with resources in {config}"}

	hcsHangs              = findingKind{CheckHCS, "no container can be started or stopped", "in PowerShell: Restart-Service -Force vmcompute; or restart the node"}
	hcsCannotAssignByPath = findingKind{CheckHCS, "containers with a GPU do not start", "set assignmentMode: auto in {config}"}
	hcsMissing            = findingKind{CheckHCS, "no container can be started", "in PowerShell: Install-WindowsFeature Containers; then restart the node"}

	containerdStopped    = findingKind{CheckContainerd, "no container can be started", "{restart}, see its log, or set --cri-socket"}
	containerdWithoutCRI = findingKind{CheckContainerd, "the kubelet cannot start pods", "remove cri from disabled_plugins in containerd's configuration"}
	containerdTooOld     = findingKind{CheckContainerd, "it is not supported", "install containerd 1.7 or later"}
	containerdSkipsShim  = findingKind{CheckContainerd, noPodStarts, "set injection: auto in {config}, or update containerd"}
	handlersUnusable     = findingKind{CheckHandlers, noPodStarts + ", and none is offered", ""}

	shimBypassed = findingKind{CheckHandlers, noPodStarts + ", and none is offered",
		"use the shim of io.containerd.runhcs.v1, or if the shim honors devices, set injection: kubelet; see docs/limits.md"}
	shimMissing        = findingKind{CheckShim, "containers of ctr and nerdctl get no GPU", installShim}
	shimNotInPlace     = findingKind{CheckShim, noPodStarts + ", and none is offered", seeAdvertiser}
	shimBroken         = findingKind{CheckShim, "no container starts", installShim + ", or 'dxctl runtime uninstall'"}
	shimFails          = findingKind{CheckShim, "no container that uses it starts", installShim + ", which tests it"}
	shimUntrusted      = findingKind{CheckPermissions, "containerd runs the shim with all privileges", ""}
	shimVersionDiffers = findingKind{CheckShim, "they may not read each other's files", installShim + " of the same version"}

	nriDisabled      = findingKind{CheckNRI, noPodWithoutNRI, "set --nri-socket"}
	nriNotRegistered = findingKind{CheckNRI, noPodWithoutNRI, "start directx-nri, or see its log"}

	kubeletStopped          = findingKind{CheckKubelet, "the node cannot offer GPUs", "start the kubelet; on a node without Kubernetes, set --kubelet-dir ''"}
	advertiserStopped       = findingKind{CheckAdvertiser, "pods that request a GPU stay pending", "start directx-advertiser, or see its log"}
	podResourcesUnreachable = findingKind{CheckRegistration, "GPUs of deleted pods stay allocated", "set --pod-resources-socket"}
	advertiserNotReady      = findingKind{CheckRegistration, "pods that request a GPU stay pending, or do not start", seeAdvertiser}
	gpuNotAllocatable       = findingKind{CheckRegistration, "pods that request it stay pending, or share fewer GPUs", seeAdvertiser}

	writableByOthers       = findingKind{CheckPermissions, "other users can change what containers get, or pretend to be the kubelet, directx-advertiser or directx-nri", "check the disk"}
	hostDirectoryUntrusted = findingKind{CheckPermissions, "pods with a GPU that request a file of it do not start, or get what other users wrote", "create it, or remove it from {config}"}
	filesHang              = findingKind{CheckPermissions, "problems with them are not detected", "check the disks of the state directory, the inventory and extraMounts.hostDirectories"}
	recordUnusable         = findingKind{CheckRecords, "a container whose record cannot be used does not start", "delete its pod, then the file: {remove}"}
)
