package main

// The names of the checks.
const (
	checkSetup        = "setup"        // directx-nri is set up
	checkConfig       = "config"       // the configuration is valid and in force
	checkWSL          = "wsl"          // WSL has GPUs and runs services
	checkInventory    = "inventory"    // the GPUs can be listed
	checkDevices      = "devices"      // the node has GPUs that containers can have
	checkDriverFiles  = "files"        // the files of drivers exist
	checkResources    = "resources"    // the configured resources match GPUs
	checkHCS          = "hcs"          // Windows can assign GPUs as configured
	checkContainerd   = "containerd"   // containerd answers and is recent enough
	checkHandlers     = "handlers"     // pods of a runtime handler can have GPUs
	checkShim         = "shim"         // containerd runs the runtime shim
	checkNRI          = "nri"          // the NRI plugin is registered
	checkKubelet      = "kubelet"      // the kubelet accepts device plugins
	checkAdvertiser   = "advertiser"   // directx-advertiser answers
	checkRegistration = "registration" // the kubelet offers the GPUs
	checkRecords      = "records"      // the allocation records can be used
	checkPermissions  = "permissions"  // only administrators can write the files
)

// The severities of findings.
const (
	severityProblem = "problem" // something is wrong
	severityUnknown = "unknown" // it could not be checked
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
	nodeNotSetUp       = findingKind{checkSetup, "no container can have a GPU", installShim + "; on a node of Kubernetes, install the chart"}
	kubernetesNotSetUp = findingKind{checkSetup, "no container can have a GPU", "start the services of the package with systemctl, or install the chart"}

	policyUnusable = findingKind{checkConfig, "containers that request a GPU do not start", "run 'dxctl config apply', or restart directx-advertiser"}
	configInvalid  = findingKind{checkConfig, "the last valid configuration stays in force", "correct the file; 'dxctl config check' checks it"}
	configStale    = findingKind{checkConfig, "the change has no effect", "run 'dxctl config apply', or start directx-advertiser"}

	wslDriverMissing    = findingKind{checkWSL, offersNoGPU, "run 'wsl --update' in Windows, or build your kernel with CONFIG_DXGKRNL" + restartWSL}
	wslLibrariesMissing = findingKind{checkWSL, offersNoGPU, "install the current driver of the GPU in Windows, and remove enabled=false from section [gpu] of /etc/wsl.conf" + restartWSL}
	wslSystemdStopped   = findingKind{checkWSL, offersNoGPU, "set systemd=true in section [boot] of /etc/wsl.conf" + restartWSL}

	noGPUDriver = findingKind{checkInventory, noGPUAndNoStart,
		"assign a GPU to this VM in Hyper-V (GPU-PV), and load the module dxgkrnl; for GPUs of another kind, run 'dxctl config apply --inventory FILE'"}
	inventoryInvalid   = findingKind{checkInventory, noGPUAndNoStart, "correct the inventory"}
	gpusNotListed      = findingKind{checkInventory, noGPUAndNoStart, "check the GPU's driver, and " + seeAdvertiser}
	noUsableGPU        = findingKind{checkDevices, "there is nothing to offer", "install the GPU's driver, or complete the inventory"}
	gpuUnusable        = findingKind{checkDevices, "no container gets it", "enable the device, install a driver that supports containers, or complete {inventory}"}
	gpuUnusableInVM    = findingKind{checkDevices, "no container gets it", "update the GPU's driver in Windows, and restart the VM; in WSL, run 'wsl --shutdown' in Windows"}
	driverFilesMissing = findingKind{checkDriverFiles, "containers get the GPU without them", "reinstall the driver, or correct {inventory}"}
	noMatchingResource = findingKind{checkResources, offersNoGPU, "compare 'dxctl devices -o wide' with resources in {config}"}

	hcsHangs              = findingKind{checkHCS, "no container can be started or stopped", "in PowerShell: Restart-Service -Force vmcompute; or restart the node"}
	hcsCannotAssignByPath = findingKind{checkHCS, "containers with a GPU do not start", "set assignmentMode: auto in {config}"}
	hcsMissing            = findingKind{checkHCS, "no container can be started", "in PowerShell: Install-WindowsFeature Containers; then restart the node"}

	containerdStopped    = findingKind{checkContainerd, "no container can be started", "{restart}, see its log, or set --cri-socket"}
	containerdWithoutCRI = findingKind{checkContainerd, "the kubelet cannot start pods", "remove cri from disabled_plugins in containerd's configuration"}
	containerdTooOld     = findingKind{checkContainerd, "it is not supported", "install containerd 1.7 or later"}
	containerdSkipsShim  = findingKind{checkContainerd, noPodStarts, "set injection: auto in {config}, or update containerd"}
	handlersUnusable     = findingKind{checkHandlers, noPodStarts + ", and none is offered", ""}

	shimBypassed = findingKind{checkHandlers, noPodStarts + ", and none is offered",
		"use the shim of io.containerd.runhcs.v1, or if the shim honors devices, set injection: kubelet; see docs/limits.md"}
	shimMissing        = findingKind{checkShim, "containers of ctr and nerdctl get no GPU", installShim}
	shimNotInPlace     = findingKind{checkShim, noPodStarts + ", and none is offered", seeAdvertiser}
	shimBroken         = findingKind{checkShim, "no container starts", installShim + ", or 'dxctl runtime uninstall'"}
	shimFails          = findingKind{checkShim, "no container that uses it starts", installShim + ", which tests it"}
	shimUntrusted      = findingKind{checkPermissions, "containerd runs the shim with all privileges", ""}
	shimVersionDiffers = findingKind{checkShim, "they may not read each other's files", installShim + " of the same version"}

	nriDisabled      = findingKind{checkNRI, noPodWithoutNRI, "set --nri-socket"}
	nriNotRegistered = findingKind{checkNRI, noPodWithoutNRI, "start directx-nri, or see its log"}

	kubeletStopped          = findingKind{checkKubelet, "the node cannot offer GPUs", "start the kubelet; on a node without Kubernetes, set --kubelet-dir ''"}
	advertiserStopped       = findingKind{checkAdvertiser, "pods that request a GPU stay pending", "start directx-advertiser, or see its log"}
	podResourcesUnreachable = findingKind{checkRegistration, "GPUs of deleted pods stay allocated", "set --pod-resources-socket"}
	advertiserNotReady      = findingKind{checkRegistration, "pods that request a GPU stay pending, or do not start", seeAdvertiser}
	gpuNotAllocatable       = findingKind{checkRegistration, "pods that request it stay pending, or share fewer GPUs", seeAdvertiser}

	writableByOthers       = findingKind{checkPermissions, "other users can change what containers get, or pretend to be the kubelet, directx-advertiser or directx-nri", "check the disk"}
	hostDirectoryUntrusted = findingKind{checkPermissions, "pods with a GPU that request a file of it do not start, or get what other users wrote", "create it, or remove it from {config}"}
	filesHang              = findingKind{checkPermissions, "problems with them are not detected", "check the disks of the state directory, the inventory and extraMounts.hostDirectories"}
	recordUnusable         = findingKind{checkRecords, "a container whose record cannot be used does not start", "delete its pod, then the file: {remove}"}
)
