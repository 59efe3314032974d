package shimcheck

import (
	"errors"
	"strings"
	"testing"

	"github.com/directx-nri/directx-nri/internal/containerdconfig"
	"github.com/directx-nri/directx-nri/internal/criclient"
	"github.com/directx-nri/directx-nri/internal/shimfile"
)

const runhcs, runc, ours = "io.containerd.runhcs.v1", "io.containerd.runc.v2", `C:\x\containerd-shim-directx-v1.exe`

func TestCheckUsed(t *testing.T) {
	t.Parallel()
	const notSet = "runtime handler a is not set; run 'dxctl runtime configure --restart'"
	set := containerdconfig.Handler{Name: "a", RuntimeType: runhcs, RuntimePath: ours}
	setLinux := containerdconfig.Handler{Name: "a", RuntimeType: runc, RuntimePath: ours}
	for name, test := range map[string]struct {
		os       string
		major    int
		handlers []containerdconfig.Handler
		want     string
	}{
		"one of two":           {"windows", 1, []containerdconfig.Handler{{Name: "a", RuntimeType: runhcs}, {Name: "b", RuntimeType: runhcs, RuntimePath: ours}}, ""},
		"Windows, 2.x":         {"windows", 2, []containerdconfig.Handler{{Name: "a", RuntimeType: runhcs, RuntimePath: ours}}, ""},
		"Linux, 1.7":           {"linux", 1, []containerdconfig.Handler{{Name: "a", RuntimeType: runc, RuntimePath: ours}}, ""},
		"Linux, 2.x":           {"linux", 2, []containerdconfig.Handler{{Name: "a", RuntimeType: runc, RuntimePath: ours}}, "--injection nri"},
		"none":                 {"windows", 1, []containerdconfig.Handler{{Name: "a", RuntimeType: runhcs}, {Name: "b", RuntimeType: runhcs}}, notSet},
		"another shim":         {"linux", 1, []containerdconfig.Handler{{Name: "a", RuntimeType: runc, RuntimePath: "/opt/other"}}, "a is /opt/other"},
		"only others":          {"linux", 1, []containerdconfig.Handler{{Name: "kata", RuntimeType: "io.containerd.kata.v2"}}, "no runtime handler can have GPUs"},
		"only Hyper-V":         {"windows", 1, []containerdconfig.Handler{{Name: "hv", RuntimeType: runhcs, SandboxIsolation: 1, RuntimePath: ours}}, "handler hv has Hyper-V isolation"},
		"only a sandboxer":     {"windows", 2, []containerdconfig.Handler{{Name: "a", RuntimeType: runhcs, Sandboxer: "shim", RuntimePath: ours}}, "handler a has the sandboxer shim"},
		"only gVisor":          {"linux", 1, []containerdconfig.Handler{{Name: "a", RuntimeType: runc, BinaryName: "/x/runsc", RuntimePath: ours}}, "a runs /x/runsc"},
		"our runtime_type":     {"linux", 1, []containerdconfig.Handler{{Name: "a", RuntimeType: shimfile.RuntimeName}}, ""},
		"gVisor, too":          {"linux", 1, []containerdconfig.Handler{setLinux, {Name: "b", RuntimeType: runc, BinaryName: "/x/runsc", RuntimePath: ours}}, "b runs /x/runsc"},
		"gVisor without ours":  {"linux", 1, []containerdconfig.Handler{setLinux, {Name: "b", RuntimeType: runc, BinaryName: "/x/runsc"}}, ""},
		"only Kata's shim":     {"linux", 1, []containerdconfig.Handler{{Name: "a", RuntimeType: runc, RuntimePath: "/x/containerd-shim-kata-v2"}}, "a runs /x/containerd-shim-kata-v2"},
		"crun":                 {"linux", 1, []containerdconfig.Handler{{Name: "a", RuntimeType: runc, BinaryName: "/x/crun", RuntimePath: ours}}, ""},
		"hcsshim's draft":      {"windows", 2, []containerdconfig.Handler{set, {Name: "b", RuntimeType: "io.containerd.wcowprocess.v2"}}, "b runs io.containerd.wcowprocess.v2"},
		"its path":             {"windows", 2, []containerdconfig.Handler{set, {Name: "b", RuntimeType: runhcs, RuntimePath: `C:\x\containerd-shim-WCOWProcess-v2.exe`}}, `b runs C:\x\`},
		"its announced name":   {"windows", 2, []containerdconfig.Handler{set, {Name: "b", RuntimeType: "io.containerd.process.v2"}}, "b runs io.containerd.process.v2"},
		"its type, our path":   {"windows", 2, []containerdconfig.Handler{set, {Name: "b", RuntimeType: "io.containerd.process.v2", RuntimePath: ours}}, ""},
		"type of the other OS": {"linux", 1, []containerdconfig.Handler{{Name: "b", RuntimeType: runhcs, RuntimePath: ours}, {Name: "a", RuntimeType: runc}}, notSet},
	} {
		err := CheckUsed(criclient.RunningConfig{Handlers: test.handlers, OS: test.os, Major: test.major})
		switch {
		case test.want == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case test.want != "" && (!errors.Is(err, ErrNotUsed) || !strings.Contains(err.Error(), test.want)):
			t.Errorf("%s: error %v, want %q", name, err, test.want)
		}
	}
}
