//go:build unix

package shimcheck

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/internal/testutil/grpctest"
	"github.com/directx-nri/directx-nri/shim/shimfile"
)

// containerd is one whose only handler has a runtime_path.
type containerd struct {
	cri.UnimplementedRuntimeServiceServer
	path    string
	sandbox string // its sandboxer
}

func (c *containerd) Status(context.Context, *cri.StatusRequest) (*cri.StatusResponse, error) {
	config := fmt.Sprintf(`{"containerd": {"defaultRuntimeName": "usual", "runtimes": {"usual": {"runtimeType": "io.containerd.runc.v2", "runtimePath": %q, "sandboxMode": %q}}}}`, c.path, c.sandbox)
	return &cri.StatusResponse{Info: map[string]string{"config": config}}, nil
}

func (*containerd) Version(context.Context, *cri.VersionRequest) (*cri.VersionResponse, error) {
	return &cri.VersionResponse{RuntimeVersion: "v1.7.35"}, nil
}

func TestCheck(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	shim := filepath.Join(dir, shimfile.BaseName)
	testutil.WriteFile(t, shim, "", 0o700)
	for name, test := range map[string]struct {
		path, sandbox string
		bypass        string // the reason that the shim reports
		real          string // the configured real shim
		words         string
		unknown       bool // the error is not definite
	}{
		"routed":            {path: shim},
		"another sandboxer": {path: shim, sandbox: "shim", words: "no runtime handler can have GPUs"},
		"not routed":        {path: "", words: "runtime handler usual is not set; run 'dxctl runtime configure --restart'"},
		"another shim":      {path: "/usr/bin/other", words: "/usr/bin/other"},
		"shim is gone":      {path: filepath.Join(dir, "gone", shimfile.BaseName), words: "run 'dxctl runtime install'"},
		"shim unknown":      {path: filepath.Join(shim, shimfile.BaseName), words: "find the runtime shim: ", unknown: true},
		"bypassed":          {path: shim, bypass: "bootstrap version 3", words: "bootstrap version 3"},
		"bypass unknown":    {path: shim, bypass: "damaged", words: "bypass", unknown: true},
		"sandboxed":         {path: shim, real: "containerd-shim-kata-v2", words: "set shim.realShim"},
		"real shim unknown": {path: shim, real: "damaged", words: "real-shim: the file is empty; "},
		"no containerd":     {path: "none", words: "/s correct?", unknown: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stateDir := t.TempDir()
			socket := filepath.Join(stateDir, "s")
			if test.path != "none" {
				grpctest.Serve(t, socket, &cri.RuntimeService_ServiceDesc, &containerd{path: test.path, sandbox: test.sandbox})
			}
			if test.bypass == "damaged" {
				testutil.NoError(t, os.Mkdir(filepath.Join(stateDir, "bypass"), 0o700))
			} else if test.bypass != "" {
				testutil.NoError(t, os.Chmod(stateDir, 0o700), shimfile.RecordBypass(stateDir, test.bypass))
			}
			p := policy.Default()
			p.Shim.RealShim = test.real
			testutil.NoError(t, os.Chmod(stateDir, 0o700), policy.Write(stateDir, p))
			if test.real == "damaged" {
				testutil.NoError(t, os.Truncate(policy.RealShimFile(stateDir), 0))
			}
			err := Check(t.Context(), stateDir, socket)
			testutil.CheckError(t, "check", err, test.words)
			if definite := test.words != "" && !test.unknown; IsDefinite(err) != definite {
				t.Errorf("error %v; definite: %t", err, !definite)
			} else if definite && test.bypass == "" && errlog.RemedyOf(err) == "" {
				t.Errorf("%v has no remedy", err)
			}
		})
	}
}
