package shimcheck

import (
	"errors"
	"testing"

	"github.com/directx-nri/directx-nri/internal/containerdconfig"
	"github.com/directx-nri/directx-nri/internal/criclient"
	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/shim/shimfile"
)

const runhcs, runc, ours = "io.containerd.runhcs.v1", "io.containerd.runc.v2", `C:\x\containerd-shim-directx-v1.exe`

func TestCheckUsed(t *testing.T) {
	t.Parallel()
	const notSet = "runtime handler a is not set; run 'dxctl runtime configure --restart'"
	set := containerdconfig.Handler{Name: "a", RuntimeType: runhcs, RuntimePath: ours}
	setLinux := containerdconfig.Handler{Name: "a", RuntimeType: runc, RuntimePath: ours}
	for name, test := range map[string]struct {
		os, version string
		handlers    []containerdconfig.Handler
		want        string
	}{
		"one of two":           {"windows", "v1.7.35", []containerdconfig.Handler{{Name: "a", RuntimeType: runhcs}, {Name: "b", RuntimeType: runhcs, RuntimePath: ours}}, ""},
		"Windows, 2.x":         {"windows", "v2.4.2", []containerdconfig.Handler{{Name: "a", RuntimeType: runhcs, RuntimePath: ours}}, ""},
		"Windows, 2.0.5":       {"windows", "v2.0.5", []containerdconfig.Handler{set}, "2.0.6 or newer, or set injection: kubelet"},
		"Windows, 2.0.6":       {"windows", "2.0.6", []containerdconfig.Handler{set}, ""},
		"Linux, 1.7":           {"linux", "v1.7.35", []containerdconfig.Handler{{Name: "a", RuntimeType: runc, RuntimePath: ours}}, ""},
		"Linux, 2.x":           {"linux", "v2.4.2", []containerdconfig.Handler{{Name: "a", RuntimeType: runc, RuntimePath: ours}}, "--injection nri"},
		"none":                 {"windows", "v1.7.35", []containerdconfig.Handler{{Name: "a", RuntimeType: runhcs}, {Name: "b", RuntimeType: runhcs}}, notSet},
		"another shim":         {"linux", "v1.7.35", []containerdconfig.Handler{{Name: "a", RuntimeType: runc, RuntimePath: "/opt/other"}}, "a is /opt/other"},
		"only others":          {"linux", "v1.7.35", []containerdconfig.Handler{{Name: "kata", RuntimeType: "io.containerd.kata.v2"}}, "no runtime handler can have GPUs"},
		"only Hyper-V":         {"windows", "v1.7.35", []containerdconfig.Handler{{Name: "hv", RuntimeType: runhcs, SandboxIsolation: 1, RuntimePath: ours}}, "handler hv has Hyper-V isolation"},
		"only a sandboxer":     {"windows", "v2.4.2", []containerdconfig.Handler{{Name: "a", RuntimeType: runhcs, Sandboxer: "shim", RuntimePath: ours}}, "handler a has the sandboxer shim"},
		"only gVisor":          {"linux", "v1.7.35", []containerdconfig.Handler{{Name: "a", RuntimeType: runc, BinaryName: "/x/runsc", RuntimePath: ours}}, "a runs /x/runsc"},
		"our runtime_type":     {"linux", "v1.7.35", []containerdconfig.Handler{{Name: "a", RuntimeType: shimfile.RuntimeName}}, ""},
		"gVisor, too":          {"linux", "v1.7.35", []containerdconfig.Handler{setLinux, {Name: "b", RuntimeType: runc, BinaryName: "/x/runsc", RuntimePath: ours}}, "b runs /x/runsc"},
		"gVisor without ours":  {"linux", "v1.7.35", []containerdconfig.Handler{setLinux, {Name: "b", RuntimeType: runc, BinaryName: "/x/runsc"}}, ""},
		"only Kata's shim":     {"linux", "v1.7.35", []containerdconfig.Handler{{Name: "a", RuntimeType: runc, RuntimePath: "/x/containerd-shim-kata-v2"}}, "a runs /x/containerd-shim-kata-v2"},
		"crun":                 {"linux", "v1.7.35", []containerdconfig.Handler{{Name: "a", RuntimeType: runc, BinaryName: "/x/crun", RuntimePath: ours}}, ""},
		"hcsshim's draft":      {"windows", "v2.4.2", []containerdconfig.Handler{set, {Name: "b", RuntimeType: "io.containerd.wcowprocess.v2"}}, "b runs io.containerd.wcowprocess.v2"},
		"its path":             {"windows", "v2.4.2", []containerdconfig.Handler{set, {Name: "b", RuntimeType: runhcs, RuntimePath: `C:\x\containerd-shim-WCOWProcess-v2.exe`}}, `b runs C:\x\`},
		"its announced name":   {"windows", "v2.4.2", []containerdconfig.Handler{set, {Name: "b", RuntimeType: "io.containerd.process.v2"}}, "b runs io.containerd.process.v2"},
		"its type, our path":   {"windows", "v2.4.2", []containerdconfig.Handler{set, {Name: "b", RuntimeType: "io.containerd.process.v2", RuntimePath: ours}}, ""},
		"type of the other OS": {"linux", "v1.7.35", []containerdconfig.Handler{{Name: "b", RuntimeType: runhcs, RuntimePath: ours}, {Name: "a", RuntimeType: runc}}, notSet},
	} {
		err := CheckUsed(criclient.RunningConfig{Handlers: test.handlers, OS: test.os, Version: test.version})
		testutil.CheckError(t, name, err, test.want)
		if err != nil && !errors.Is(err, ErrNotUsed) {
			t.Errorf("%s: error %v, want %v", name, err, ErrNotUsed)
		}
	}
}
