package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"directx-nri/internal/config"
	"directx-nri/internal/containerdconfig"
	"directx-nri/internal/durable"
	"directx-nri/internal/readiness"
)

func (j *judge) windows() {
	if j.Windows == nil {
		return
	}
	j.looked(CheckHCS)
	a := j.Windows.Assignment()
	switch {
	case errors.Is(j.Windows.SchemasErr, context.DeadlineExceeded):
		j.problem(CheckHCS, "vmcompute", fmt.Sprintf("Windows' container service does not answer: %v", j.Windows.SchemasErr), "no container can be started or stopped",
			"in PowerShell: Restart-Service -Force vmcompute; if it goes on, restart the node")
	case !a.Individual && j.Config.Value.Assignment == config.AssignByPath:
		j.problem(CheckHCS, j.Windows.Windows.String(), a.Reason, "the container service refuses a container with a single GPU, and assignmentMode: location-path gives it one",
			"set assignmentMode: auto in "+j.Config.Path+", or use Windows Server 2022 or newer on nodes with GPUs")
	case !a.Individual:
		j.note("%s", a.Reason)
	case errors.Is(j.Windows.SchemasErr, errors.ErrUnsupported):
		j.problem(CheckHCS, j.Windows.Windows.String(), fmt.Sprintf("Windows' container service is not there: %v", j.Windows.SchemasErr), "no container can be started",
			"in PowerShell: Install-WindowsFeature Containers; then restart the node")
	case j.Windows.SchemasErr != nil && !j.isDenied(j.Windows.SchemasErr, "Windows' container service"):
		j.unknown(CheckHCS, j.Windows.Windows.String(), fmt.Sprintf("Windows' container service does not say what it can do: %v", j.Windows.SchemasErr), a.Reason, "run 'dxctl capabilities' as an administrator")
	}
}

func (j *judge) containerd() {
	c := j.Containerd
	j.looked(CheckContainerd, CheckFile)
	switch {
	case c.Err == nil:
		j.version()
	case j.isDenied(c.Err, "containerd on "+c.Socket):
	case c.WithoutCRI && j.verdict.Role == RoleStandalone:
		// ctr and nerdctl do without.
	case c.WithoutCRI:
		j.problem(CheckContainerd, c.Socket, "containerd runs without its CRI plugin", "the kubelet can start no pod by it", "take cri out of disabled_plugins in "+c.ConfigPath+", and restart containerd")
	case errors.Is(c.Err, context.DeadlineExceeded):
		j.problem(CheckContainerd, c.Socket, fmt.Sprintf("containerd does not answer: %v", c.Err), "no container can be started or stopped", j.restart()+"; if it goes on, see its log")
	default:
		j.problem(CheckContainerd, c.Socket, fmt.Sprintf("containerd cannot be reached: %v", c.Err), "no container can be started", j.restart()+", or say where its socket is with --cri-socket")
	}
	switch {
	case c.FileErr == nil || j.isDenied(c.FileErr, c.ConfigPath):
	default:
		j.problem(CheckFile, c.ConfigPath, c.FileErr.Error(), "containerd does not start with it the next time", "mend it in the place that is named, or say with --config which file containerd reads")
	}
	for _, bad := range c.BadImports {
		j.problem(CheckFile, c.ConfigPath, bad, "containerd does not start with it the next time", "mend that file, or take it out of imports")
	}
	if !j.served(ServedByShim) {
		return // What is imported has other runtime handlers, and the plugin needs none.
	}
	for _, override := range c.Overrides {
		j.problem(CheckFile, c.ConfigPath, override, "what 'dxctl runtime configure' writes has no effect", "move that table to "+c.ConfigPath)
	}
}

func (j *judge) version() {
	j.looked(CheckVersion)
	major, minor, ok := numbers(j.Containerd.Version)
	older := func(thanMinor int) bool { return isBefore(major, minor, thanMinor) }
	switch {
	case !ok:
		j.unknown(CheckVersion, j.Containerd.Version, fmt.Sprintf("containerd says that it is version %q, which is none", j.Containerd.Version), "1.6 and newer are known to work with our shim, 1.7 and newer with our NRI plugin", "see 'containerd --version'")
	case older(6):
		j.problem(CheckVersion, j.Containerd.Version, "containerd "+j.Containerd.Version+" is older than 1.6", "it is not known to work with our shim", "install containerd 1.7 or newer")
	case older(7) && j.OS == "windows" && j.served(ServedByKubelet):
		j.problem(CheckVersion, j.Containerd.Version, "containerd "+j.Containerd.Version+" knows no devices of Windows that the kubelet tells it", "with injection: kubelet no container gets its GPU", "install containerd 1.7 or newer")
	case older(7) && j.served(ServedByNRI):
		j.problem(CheckVersion, j.Containerd.Version, "containerd "+j.Containerd.Version+" has no NRI", "our plugin is never asked what a container gets",
			"install containerd 1.7 or newer, or have the shim serve pods: 'dxctl runtime configure --restart', and directx-advertiser --served-by shim")
	case j.OS == "linux" && major >= 2 && j.verdict.Role == RoleKubernetes && j.served(ServedByShim) && !j.served(ServedByNRI) && !j.served(ServedByKubelet):
		j.problem(CheckVersion, j.Containerd.Version, "containerd "+j.Containerd.Version+" starts a pod's containers on Linux by its sandbox's shim, and ours is not asked", "pods that hold a GPU get none, and are not started",
			"turn NRI on ('dxctl runtime configure --no-shim --restart'), and run directx-nri and directx-advertiser --served-by nri")
	}
}

func (j *judge) shim() {
	c := j.Containerd
	if c.FileErr == nil && j.verdict.Role == RoleKubernetes {
		j.handlers()
	}
	j.looked(CheckShim, CheckShimVersion, CheckRealShim)
	// One that is not there for ctr and nerdctl is no loss where pods are served
	// by runtime_path.
	var used []Shim
	for _, s := range j.Shims {
		if len(s.Handlers) == 0 && j.verdict.Role == RoleKubernetes {
			continue
		}
		j.oneShim(s)
		used = append(used, s)
	}
	if j.has(CheckShim, CheckConfig) {
		return
	}
	for _, s := range used {
		if s.RealErr != nil && !j.has(CheckRealShim) {
			j.problem(CheckRealShim, s.Path, s.RealErr.Error(), "our shim hands over to the real one, and without it no container starts that goes through ours",
				"install it beside containerd, or name it in "+j.Config.Path+" as shim.runtime")
		}
	}
}

func (j *judge) handlers() {
	c := j.Containerd
	j.looked(CheckHandlers, CheckAnnotations)
	loaded := map[string]containerdconfig.Handler{}
	for _, h := range c.Loaded {
		loaded[h.Name] = h
	}
	var silent, stale []string
	routed := 0
	for _, h := range c.File.Handlers {
		if h.Ours() {
			routed++
			if !h.PassesAnnotations() {
				silent = append(silent, h.Name)
			}
		}
		// What neither has by us is somebody else's business.
		now := loaded[h.Name]
		if (h.Ours() || now.Ours()) && now.RuntimePath != h.RuntimePath {
			stale = append(stale, h.Name)
		}
	}
	for _, h := range c.Loaded {
		if h.Ours() && !slices.ContainsFunc(c.File.Handlers, func(in containerdconfig.Handler) bool { return in.Name == h.Name }) {
			stale = append(stale, h.Name)
		}
	}
	if len(silent) > 0 {
		j.problem(CheckAnnotations, strings.Join(silent, ", "), fmt.Sprintf("runtime handler %s does not hand on %s", strings.Join(silent, ", "), containerdconfig.AnnotationPattern),
			"the shim does not see the annotations of the advertiser and of pods", "run 'dxctl runtime configure --restart'")
	}
	if c.Err == nil {
		j.looked(CheckLoaded)
		if len(stale) > 0 {
			j.problem(CheckLoaded, strings.Join(stale, ", "), fmt.Sprintf("runtime handler %s is not in the running containerd as %s has it: containerd has not loaded it so", strings.Join(stale, ", "), c.ConfigPath),
				"containers go by what was loaded, until containerd is restarted", j.restart()+"; where it reads another file, name that with --config")
			return
		}
	}
	if routed == 0 && !j.hasFailed() {
		j.problem(CheckHandlers, c.ConfigPath, "no runtime handler goes through our shim", "pods that hold a GPU get none, and are not started", containerdconfig.Fix)
	}
}

func (j *judge) oneShim(s Shim) {
	whose := "ctr and nerdctl"
	if len(s.Handlers) > 0 {
		whose = "the runtime handler " + strings.Join(s.Handlers, ", ")
	}
	const why = "containers that go through it do not start"
	switch {
	case s.Err == nil:
		if j.Version != "" && s.Version != j.Version {
			j.problem(CheckShimVersion, s.Path, fmt.Sprintf("the shim is of version %s, and this is dxctl %s", cmp.Or(s.Version, "that it does not tell"), j.Version),
				"the node's programs are meant to be of one version: what one writes the other may not read", "run 'dxctl runtime install' of the version that is wanted")
		}
	case j.isDenied(s.Err, s.Path):
	case errors.Is(s.Err, fs.ErrNotExist) && len(s.Handlers) == 0:
		j.problem(CheckShim, s.Path, "the shim is not where containerd looks for it: beside containerd, or on its PATH", "ctr and nerdctl cannot run containers by io.containerd.directx.v1", "run 'dxctl runtime install'")
	case errors.Is(s.Err, fs.ErrNotExist):
		j.problem(CheckShim, s.Path, "the shim of "+whose+" is not there", "containerd can start no container of that handler", "run 'dxctl runtime install', or where it is meant to be gone 'dxctl runtime unconfigure --restart'")
	case errors.Is(s.Err, durable.ErrUntrusted):
		j.problem(CheckPermissions, s.Path, s.Err.Error(), "containerd runs the shim as the system, and whoever can write it becomes the system", fileFix(j.OS, s.Path))
	case errors.Is(s.Err, context.DeadlineExceeded):
		j.problem(CheckShim, s.Path, "the shim does not answer to --version", why, "run '"+s.Path+" --self-test', and install it anew with 'dxctl runtime install'")
	default:
		j.problem(CheckShim, s.Path, fmt.Sprintf("the shim of %s does not work: %v", whose, s.Err), why, "install it anew with 'dxctl runtime install', which tests it first")
	}
}

func (j *judge) nri() {
	n := j.NRI
	// An imported file may have turned NRI on or off.
	isOff := j.Containerd.FileErr == nil && !j.Containerd.File.NRI && len(j.Containerd.Overrides) == 0
	if j.has(CheckContainerd, CheckVersion, CheckFile) || j.Containerd.Err != nil {
		return
	}
	j.looked(CheckNRI, CheckPlugin)
	if j.taken(programPlugin) && errors.Is(n.PluginErr, readiness.ErrNotRunning) {
		return // It cannot start, which is told.
	}
	const why = "pods that hold a GPU are not started as long as our plugin is not registered"
	switch {
	case n.PluginErr == nil && isOff:
		j.problem(CheckNRI, j.Containerd.ConfigPath, "NRI is on in the running containerd, and off in "+j.Containerd.ConfigPath, "after containerd's next restart no pod gets a GPU",
			"run 'dxctl runtime configure --no-shim', or say with --config which file containerd reads")
	case n.PluginErr == nil || j.isDenied(n.PluginErr, "the NRI plugin on "+n.PluginSocket):
	case isOff && j.hasFailed(): // It was to be turned on, which is told.
	case isOff:
		j.problem(CheckNRI, j.Containerd.ConfigPath, "NRI is off in containerd", "our plugin is never asked, and pods that hold a GPU are not started", "run 'dxctl runtime configure --no-shim --restart'")
	case j.isDenied(n.SocketErr, n.Socket):
	case n.SocketErr != nil:
		j.problem(CheckNRI, n.Socket, fmt.Sprintf("containerd takes no NRI plugins on %s: %v", n.Socket, n.SocketErr), why, j.restart()+"; where its socket_path is another, say so with --nri-socket, to directx-nri too")
	case errors.Is(n.PluginErr, readiness.ErrNotRunning):
		fix := "start directx-nri; see its log if it ends"
		if isRouted(j.Facts) {
			fix += ". Where directx-advertiser runs with --served-by shim: dxctl doctor --served-by shim"
		}
		j.problem(CheckPlugin, n.PluginSocket, n.PluginErr.Error(), why, fix)
	case errors.Is(n.PluginErr, readiness.ErrNotServing):
		j.problem(CheckPlugin, n.PluginSocket, n.PluginErr.Error(), why, "see the log of directx-nri; give it the --nri-socket that containerd has")
	default:
		j.problem(CheckPlugin, n.PluginSocket, n.PluginErr.Error(), why, "see the log of directx-nri, and start it again")
	}
}
