package doctor

// The names of the checks.
const (
	CheckSetup            = "setup"             // directx-nri is set up
	CheckConfig           = "config"            // the configuration is valid and in force
	CheckWSL              = "wsl"               // WSL has GPUs and runs services
	CheckInventory        = "inventory"         // the GPUs can be listed
	CheckDevices          = "devices"           // the node has GPUs that containers can have
	CheckDriverFiles      = "files"             // the files of drivers exist
	CheckResources        = "resources"         // the configured resources match GPUs
	CheckHCS              = "hcs"               // Windows can assign GPUs as configured
	CheckContainerd       = "containerd"        // containerd answers and is recent enough
	CheckContainerdConfig = "containerd-config" // its configuration is valid
	CheckHandlers         = "handlers"          // runtime handlers use the shim
	CheckShim             = "shim"              // the runtime shim and the real shim work
	CheckNRI              = "nri"               // the NRI plugin is registered
	CheckKubelet          = "kubelet"           // the kubelet accepts device plugins
	CheckAdvertiser       = "advertiser"        // directx-advertiser answers
	CheckRegistration     = "registration"      // the kubelet offers the GPUs
	CheckRecords          = "records"           // the allocation records can be used
	CheckPermissions      = "permissions"       // only administrators can write the files
	CheckLeftovers        = "leftovers"         // no command was interrupted
)

// The severities of findings.
const (
	Problem = "problem" // something is wrong
	Unknown = "unknown" // it could not be checked
)

// Finding is a problem of a node. The names of its fields are stable.
type Finding struct {
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
// remedy. The remedy can have the placeholders {config}, {inventory}, {containerd}, {restart}
// and {remove}.
type findingKind struct{ check, effect, fix string }

// Parts of several kinds.
const (
	offersNoGPU          = "the node offers no GPU"
	noGPUAndNoStart      = "the node offers no GPU, and containers that request one do not start"
	noPodStarts          = "pods with a GPU do not start"
	containersDoNotStart = "containers that use it do not start"
	cannotRestart        = "containerd does not start again"
	configureRuntime     = "run 'dxctl runtime configure --restart'"
	restartWSL           = "; then run 'wsl --shutdown' in Windows"
	seeAdvertiser        = "see the log of directx-advertiser"
	noPodWithoutNRI      = "pods with a GPU do not start while the NRI plugin is not registered"
)

// The kinds of findings.
//
//nolint:gochecknoglobals // These are constants.
var (
	nodeNotSetUp       = findingKind{CheckSetup, "no container can have a GPU", "run 'dxctl runtime install', then 'dxctl runtime configure --restart' if pods get GPUs"}
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

	containerdStopped       = findingKind{CheckContainerd, "no container can be started", "{restart}, see its log, or set --cri-socket"}
	containerdWithoutCRI    = findingKind{CheckContainerd, "the kubelet cannot start pods", "remove cri from disabled_plugins in {containerd}"}
	containerdTooOld        = findingKind{CheckContainerd, "it is not supported", "install containerd 1.7 or later"}
	containerdSkipsShim     = findingKind{CheckContainerd, noPodStarts, ""}
	containerdConfigInvalid = findingKind{CheckContainerdConfig, cannotRestart, "correct the file, or set --containerd-config"}
	importInvalid           = findingKind{CheckContainerdConfig, cannotRestart, "correct that file, or remove it from imports"}
	importOverrides         = findingKind{CheckContainerdConfig, "the settings of 'dxctl runtime configure' have no effect", ""}

	handlerIgnoresDevices = findingKind{CheckHandlers, "its containers would start without their GPUs; with the runtime shim, the node offers none",
		"remove the handler from {containerd}; then {restart}"}
	shimBypassed = findingKind{CheckHandlers, noPodStarts + ", and none is offered",
		"while containerd has the shim of io.containerd.runhcs.v1, use handlers of that type and run 'dxctl runtime install'; otherwise, if the shim honors devices, set injection: kubelet; see docs/limits.md"}
	handlerNotEligible        = findingKind{CheckHandlers, "its containers get no GPU", "remove its runtime_path in {containerd}"}
	handlerWithoutAnnotations = findingKind{CheckHandlers, "the shim does not get the annotations of pods", configureRuntime}
	handlerNotLoaded          = findingKind{CheckHandlers, "the configuration has no effect until containerd is restarted", "{restart}, or set --containerd-config"}
	noEligibleHandler         = findingKind{CheckHandlers, noPodStarts, "add a handler without a sandboxer to {containerd}, then " + configureRuntime}
	noHandlerWithShim         = findingKind{CheckHandlers, noPodStarts, configureRuntime}

	shimMissing        = findingKind{CheckShim, containersDoNotStart, "run 'dxctl runtime install', or 'dxctl runtime unconfigure --restart'"}
	shimFails          = findingKind{CheckShim, containersDoNotStart, "run 'dxctl runtime install', which tests it"}
	shimUntrusted      = findingKind{CheckPermissions, "containerd runs the shim with all privileges", ""}
	shimVersionDiffers = findingKind{CheckShim, "they may not read each other's files", "run 'dxctl runtime install' of the same version"}
	realShimOwnKernel  = findingKind{CheckShim, "containers that request a GPU do not start", ""}
	realShimMissing    = findingKind{CheckShim, "no container that uses the runtime shim starts", "install the real shim beside containerd, or set shim.realShim in {config}"}

	nriDisabledAfterRestart = findingKind{CheckNRI, "pods with a GPU do not start after containerd's next restart", "run 'dxctl runtime configure --no-shim', or set --containerd-config"}
	nriDisabled             = findingKind{CheckNRI, noPodWithoutNRI, "run 'dxctl runtime configure --no-shim --restart'"}
	nriNotRegistered        = findingKind{CheckNRI, noPodWithoutNRI, "start directx-nri, or see its log"}

	kubeletStopped          = findingKind{CheckKubelet, "the node cannot offer GPUs", "start the kubelet; on a node without Kubernetes, set --kubelet-dir ''"}
	advertiserStopped       = findingKind{CheckAdvertiser, "pods that request a GPU stay pending", "start directx-advertiser, or see its log"}
	podResourcesUnreachable = findingKind{CheckRegistration, "GPUs of deleted pods stay allocated", "set --pod-resources-socket"}
	advertiserNotReady      = findingKind{CheckRegistration, "pods that request a GPU stay pending, or do not start", seeAdvertiser}
	gpuNotAllocatable       = findingKind{CheckRegistration, "pods that request it stay pending, or share fewer GPUs", seeAdvertiser}

	writableByOthers       = findingKind{CheckPermissions, "other users can change what containers get, or pretend to be the kubelet, directx-advertiser or directx-nri", "check the disk"}
	hostDirectoryUntrusted = findingKind{CheckPermissions, "pods with a GPU that request a file of it do not start, or get what other users wrote", "create it, or remove it from {config}"}
	filesHang              = findingKind{CheckPermissions, "problems with them are not detected", "check the disks of the state directory, the inventory and extraMounts.hostDirectories"}
	recordUnusable         = findingKind{CheckRecords, "a container whose record cannot be used does not start", "delete its pod, then the file: {remove}"}

	changeRecordDamaged = findingKind{CheckLeftovers, "'dxctl runtime unconfigure' cannot restore containerd's configuration",
		"compare it with {containerd}; if you do not need its content, remove it: {remove}"}
	restartFailed = findingKind{CheckLeftovers, "the old configuration is in force, and the same change is not tried again for an hour",
		"see containerd's log; to try again now, set another --restart-timeout"}
	restartDue = findingKind{CheckLeftovers, "containerd may not have loaded its configuration, or may still use a shim that is being removed", "run the command again, with --restart"}
)
