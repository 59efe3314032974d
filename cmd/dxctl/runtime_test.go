package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/shim/shimfile"
)

// TestRuntimeOnLinux installs, shows and removes a script in place of the shim. The suites on Windows do so with the
// shim itself, in the place of runhcs.
func TestRuntimeOnLinux(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("the shim is not a script")
	}
	dir := t.TempDir()
	from, shimDir, state := filepath.Join(dir, "new"), filepath.Join(dir, "bin"), filepath.Join(dir, "state")
	path := filepath.Join(shimDir, shimfile.FileName())
	testutil.WriteFile(t, from, "#!/bin/sh\ncase $1 in --version) echo "+shimfile.BaseName+" 1.2.3;; *) echo "+shimfile.SelfTestPassed+";; esac\n", 0o700)
	testutil.NoError(t, shimfile.RecordBypass(state, "another shim"))
	runtime := func(command string, args ...string) (string, error) {
		return runCLI(t, append([]string{"runtime", command, "--shim-dir", shimDir}, args...)...)
	}
	if _, err := runtime("status", "--state-dir", state); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("status before: %v", err)
	}
	_, err := runtime("install", "--from", from+".none", "--state-dir", state)
	testutil.CheckError(t, "install no file", err, "set --from")
	testutil.NoError(t, os.Mkdir(shimDir, 0o755))
	for range 2 {
		if out, err := runtime("install", "--from", from, "--state-dir", state); err != nil || out != "installed "+path+"\n" {
			t.Errorf("%q, %v", out, err)
		}
	}
	testutil.WriteFile(t, from, "#!/bin/sh\nexit 1\n", 0o700)
	if _, err := runtime("install", "--from", from, "--state-dir", state); !errors.Is(err, shimfile.ErrSelfTest) {
		t.Errorf("install a shim that fails: %v", err)
	}
	if out, err := runtime("status", "--state-dir", state); err != nil || !strings.Contains(out, "version 1.2.3") {
		t.Errorf("status: %q, %v", out, err)
	}
	for _, want := range []string{"removed " + path + "\n", "there is nothing to remove\n"} {
		if out, err := runtime("uninstall"); err != nil || out != want {
			t.Errorf("%q, %v, want %q", out, err, want)
		}
	}
}

// TestAllowVariable: a configuration or policy of the machine is not changed.
func TestAllowVariable(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		config  string // "" is none
		policy  func(*policy.Policy)
		allowed bool
		out     string
	}{
		"neither":         {allowed: true, out: "wrote and applied"},
		"a configuration": {config: configHead + "replicas: 2\n", out: "has no effect until"},
		"a policy":        {policy: func(*policy.Policy) {}, out: "has no effect until"},
		"already allowed": {policy: func(p *policy.Policy) { p.Standalone.Environment = true }, allowed: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			file, state := filepath.Join(dir, "etc", "config.yaml"), filepath.Join(dir, "state")
			if test.config != "" {
				testutil.WriteFile(t, file, test.config, 0o600)
			}
			if test.policy != nil {
				p := policy.Default()
				test.policy(&p)
				testutil.NoError(t, policy.Write(state, p))
			}
			var out strings.Builder
			testutil.NoError(t, allowVariable(&out, file, state))
			p, err := policy.Read(state)
			if err != nil || p.Standalone.Environment != test.allowed || !strings.Contains(out.String(), test.out) || (out.Len() == 0) != (test.out == "") {
				t.Errorf("allowed %t, %v: %q", p.Standalone.Environment, err, &out)
			}
			if text, _ := os.ReadFile(file); test.config != "" && string(text) != test.config {
				t.Errorf("the configuration is now %s", text)
			}
		})
	}
}
