//go:build e2e && linux

package windows

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"directx-nri/cmd/dxctl/doctor"
	"directx-nri/test/windows/bed"
)

// doctor runs dxctl.exe doctor for the node, as one without a kubelet, and
// returns its exit status and what it found.
func (n node) doctor(t *testing.T, flags ...string) (int, doctor.Report) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	command := n.Command(ctx, n.Path("product", bed.Dxctl), append([]string{
		"doctor", "-o", "json", "--timeout", "5m", "--config", n.Path("containerd.toml"), "--cri-socket", `\\.\pipe\dxw-` + n.Name(), "--state-dir", n.Path("state"),
		"--runtime-dir", n.Path("no-such"), "--kubelet-dir", n.Path("kubelet"), "--containerd-state", n.Path("run"), "--shim", n.Shim(),
	}, flags...)...)
	var out, errs bytes.Buffer
	command.Stdout, command.Stderr = &out, &errs
	err := command.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	var r doctor.Report
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatalf("%v\n%s%s", err, out.String(), errs.String())
	}
	return command.ProcessState.ExitCode(), r
}

// TestDoctor has dxctl.exe look at a node that is well, but for what Wine is not,
// and at the same node broken in some ways.
func TestDoctor(t *testing.T) {
	t.Parallel()
	inventory := bed.NewInventory("doctor")
	n := node{start(t, bed.Options{Name: "doctor", Inventory: inventory}), inventory.GPUs}
	// Wine says that it is an older Windows, and has no HCS. The bed's drivers list
	// files that are not there, and config.yaml names the file that says so.
	always := map[string]string{doctor.CheckHCS: "18362", doctor.CheckFiles: `gone64.dll, `}
	expect := func(what string, checks ...string) {
		t.Helper()
		status, r := n.doctor(t)
		var found []string
		for _, f := range r.Findings {
			if says := always[f.Check]; says == "" || !strings.Contains(f.Problem, says) {
				found = append(found, f.Check)
			}
		}
		if slices.Sort(found); !slices.Equal(found, checks) || r.OS != "windows" || r.Role != doctor.RoleStandalone || status != 1 || len(r.Findings) < 1 {
			t.Errorf("%s: status %d, %+v; want findings of %v", what, status, r, checks)
		}
	}
	expect("a node that is well")

	shim := n.Linux(n.Shim())
	if err := os.Rename(shim, shim+".away"); err != nil {
		t.Fatal(err)
	}
	expect("the shim is gone", doctor.CheckShim)
	if err := os.Rename(shim+".away", shim); err != nil {
		t.Fatal(err)
	}

	config := n.Linux(n.Path("config.yaml"))
	text, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("unknown: 1\n" + string(text))
	expect("an invalid configuration", doctor.CheckConfig)
	write(strings.Replace(string(text), "containerd-shim-plain-v1.exe", "no-such.exe", 1))
	expect("a configuration that is not applied", doctor.CheckConfig)
	if err := n.Apply(t); err != nil {
		t.Fatal(err)
	}
	expect("the real shim is gone", doctor.CheckShim)
	write(string(text))
	if err := n.Apply(t); err != nil {
		t.Fatal(err)
	}

	n.Kill()
	expect("containerd is stopped", doctor.CheckContainerd)
	n.Start(t)
	expect("the node is well again")
}
