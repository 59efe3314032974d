package doctor

import (
	"bytes"
	"io/fs"
	"os"
	"strings"
	"testing"

	"github.com/directx-nri/directx-nri/cmd/dxctl/printer"
	"github.com/directx-nri/directx-nri/internal/capabilities"
	"github.com/directx-nri/directx-nri/internal/containerdconfig"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/win32"
)

// TestPrintFacts checks that errors are printed as text, and handlers and the
// assignment mode as they are.
func TestPrintFacts(t *testing.T) {
	t.Parallel()
	routed := containerdconfig.Handler{Name: "routed", RuntimeType: "io.containerd.runhcs.v1", RuntimePath: `C:\shim\containerd-shim-directx-v1.exe`}
	f := nodeState{
		OS: "windows", Config: configState{Policy: policy.Default()}, Windows: &capabilities.Capabilities{Windows: win32.Version{Build: 17763}, HCSSchemas: []string{"1.0", "2.1"}},
		Containerd: containerdState{Handlers: handlers("windows", []containerdconfig.Handler{routed, {Name: "other"}}, []containerdconfig.Handler{routed})},
		Shims:      []shimState{{Path: "none", Err: fs.ErrNotExist}}, Modes: capabilities.Resolve(policy.Default(), "windows", 17763),
	}
	asText(&f.Shims[0].Err, &f.Config.Err)
	var out bytes.Buffer
	if err := printer.Document(&out, printer.YAML, f); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"error: file does not exist", "hcsSchemas:", "- \"2.1\"", "assignment: class-guid", "Windows build 17763 cannot", "driverFiles: mount", "driverFilesReason: Windows build 17763", "loaded: true", "notEligible: runtime handler other has"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
}

// TestCapabilitiesWithoutPolicy expects an error, not the defaults, if the policy cannot be read.
func TestCapabilitiesWithoutPolicy(t *testing.T) {
	t.Parallel()
	stateDir := t.TempDir()
	if err := os.WriteFile(policy.Path(stateDir), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := ask(t, NewCapabilitiesCommand("1.0"), "--state-dir", stateDir); err == nil || !strings.Contains(err.Error(), "read node policy "+policy.Path(stateDir)) || out != "" {
		t.Errorf("%v\n%s", err, out)
	}
}
