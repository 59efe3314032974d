package main

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/internal/testutil/allocationtest"
)

// specNode is a node with allocation records, and specs of containers.
type specNode struct {
	dir, state string
}

func newSpecNode(t *testing.T) specNode {
	t.Helper()
	dir := t.TempDir()
	b := specNode{dir: dir, state: filepath.Join(dir, "state")}
	p := policy.Default()
	p.DriverFiles = policy.FilesMount // on each version of Windows
	testutil.NoError(t, policy.Write(b.state, p))
	return b
}

// record makes an allocation of a GPU and returns its ID.
func (b specNode) record(t *testing.T, instanceID string) allocation.ID {
	t.Helper()
	return allocationtest.Record(t, filepath.Join(b.state, "allocations"), displays, instanceID)
}

// file writes a spec and returns its path.
func (b specNode) file(t *testing.T, name, spec string) string {
	t.Helper()
	path := filepath.Join(b.dir, name)
	testutil.WriteFile(t, path, spec, 0o600)
	return path
}

// windowsSpec returns a spec as containerd writes it for a container of a pod or a standalone
// one, with a number that no float can have.
func windowsSpec(pod bool, env ...string) string {
	annotations := map[string]string{}
	if pod {
		annotations = map[string]string{
			"io.kubernetes.cri.container-type": "container", "io.kubernetes.cri.container-name": "main", "io.kubernetes.cri.sandbox-uid": "uid-1",
			"io.kubernetes.cri.sandbox-name": "trainer", "io.kubernetes.cri.sandbox-namespace": "team",
		}
	}
	spec := map[string]any{
		"ociVersion": "1.1.0", "annotations": annotations,
		"process": map[string]any{"args": []string{"app.exe"}, "cwd": `C:\`, "env": append([]string{"PATH=x"}, env...)},
		"windows": map[string]any{"layerFolders": []string{`C:\layers\1`}, "exact": json.Number("12345678901234567890.10")},
	}
	data, err := json.Marshal(spec)
	if err != nil {
		return err.Error()
	}
	return string(data)
}

// lines runs dxctl with each of the lines, and the node's state directory.
func (b specNode) lines(t *testing.T, lines ...string) string {
	t.Helper()
	for i, line := range lines {
		lines[i] = line + " --state-dir " + b.state
	}
	text := transcript(t, b.dir, lines...)
	return strings.ReplaceAll(text, " --state-dir DIR/state", "")
}

func TestSpecOutput(t *testing.T) {
	t.Parallel()
	b := newSpecNode(t)
	pod := b.file(t, "pod.json", windowsSpec(true))
	plain := b.file(t, "plain.json", windowsSpec(false))
	asks := b.file(t, "asks.json", windowsSpec(false, "DIRECTX_VISIBLE_DEVICES=0"))
	pretends := b.file(t, "pretends.json", windowsSpec(true, "DIRECTX_VISIBLE_DEVICES=all"))
	sandbox := b.file(t, "sandbox.json", `{"windows":{},"annotations":{"io.kubernetes.cri.container-type":"sandbox"}}`)
	allocated := b.file(t, "allocated.json", strings.Replace(windowsSpec(true), `"windows":{`,
		`"windows":{"devices":[{"id":"`+allocation.InterlockDeviceID+`","idType":"`+allocation.InterlockDeviceType+`"}],`, 1))
	golden(t, "spec", b.lines(t,
		"spec "+plain,
		"spec "+plain+" --gpus 0 --assume-files",
		"spec "+asks+" --assume-files",
		"spec "+allocated,
		"spec "+sandbox,
		"spec "+pretends,
		"spec "+pod+" --gpus 0 --assume-files",
	))
}

// The spec keeps what the shim does not change, byte for byte, and the edited one is recognized.
func TestSpecAsTheShimWritesIt(t *testing.T) {
	t.Parallel()
	b := newSpecNode(t)
	transcript(t, b.dir, "devices") // It writes the inventory.
	spec := func(text string) (stdout, stderr string) {
		stdout, stderr, err := runCommand(t.Context(), t, text, "spec", "-", "-o", "json", "--assume-files", "--inventory", filepath.Join(b.dir, "gpus.yaml"), "--state-dir", b.state)
		if err != nil {
			t.Errorf("%s: %v", text, err)
		}
		return stdout, stderr
	}
	edited, _ := spec(strings.Replace(windowsSpec(false), `"annotations":{`, `"annotations":{"directx.microsoft.com/visible-devices":"0"`, 1))
	if !strings.Contains(edited, `"id":"PCIROOT(0)#PCI(1B00)"`) || !strings.Contains(edited, "12345678901234567890.10") {
		t.Errorf("edited: %s", edited)
	}
	for text, why := range map[string]string{
		edited:                               "it already has everything",
		"{\"windows\": {},\n \"x\": 1.50}\n": "the container requests no GPU",
		`{"windows":{"devices":[{"id":"PCIROOT(9)","idType":"vpci-location-path"}]}}`: "none of its devices is a GPU of this node",
		`{"linux":{},"process":{"env":["DIRECTX_VISIBLE_DEVICES=0"]}}`:                "DIRECTX_VISIBLE_DEVICES has no effect",
	} {
		if stdout, stderr := spec(text); stdout != text || !strings.Contains(stderr, "the spec is not changed: "+why) {
			t.Errorf("%s: %s, want %s\n%s", text, stderr, why, stdout)
		}
	}
}

func TestSpecRefusals(t *testing.T) {
	t.Parallel()
	b := newSpecNode(t)
	plain := b.file(t, "plain.json", windowsSpec(false))
	hyperv := b.file(t, "hyperv.json", `{"windows":{"hyperv":{}}}`)
	for line, want := range map[string]string{
		"spec":                        "accepts 1 arg(s), received 0",
		"spec a b":                    "accepts 1 arg(s), received 2",
		"spec " + b.dir + "/none":     "dxctl: open ",
		"spec " + plain + " --gpus 7": `no GPU of this node matches "7"`,
		"spec " + plain + " --assume-files --host-root /x": "[assume-files host-root]",
		"spec " + hyperv + " --gpus 0":                     "isolated by Hyper-V",
		"spec " + plain + " --gpus 1":                      "no location path",
		"spec " + b.file(t, "x.json", "{"):                 "not an OCI runtime spec",
		"spec " + b.file(t, "y.json", "null"):              "not an OCI runtime spec",
	} {
		got := b.lines(t, line)
		if !strings.Contains(got, want) || strings.Count(got, "\n") != 3 {
			t.Errorf("%s prints\n%s, want %q", line, got, want)
		}
	}
	_, _, err := runCommand(t.Context(), t, "", "spec", "-", "--state-dir", b.state)
	testutil.CheckError(t, "nothing", err, "standard input is empty")
	if _, _, err := runCommand(t.Context(), t, "{", "spec", "-", "--state-dir", b.state); err == nil || !strings.HasPrefix(err.Error(), "standard input: not an OCI runtime spec") {
		t.Errorf("standard input: %v", err)
	}
	broken := b.file(t, "config.yaml", "x: [")
	_, err = runCLI(t, "spec", plain, "--gpus", "0", "--config", broken)
	testutil.CheckError(t, "invalid configuration", err, broken)
}

// docs/install.md#without-a-gpu shows this command.
func TestSpecOfTheSampleBundle(t *testing.T) {
	t.Parallel()
	deployments := filepath.Join("..", "..", "deployments")
	out, err := runCLI(t, "spec", filepath.Join(deployments, "examples", "bundle"), "--gpus", "0",
		"--inventory", filepath.Join(deployments, "inventory", "windows-g4dn.yaml"), "--assume-files", "--config", configFile(t, mountsFiles))
	if err != nil || !strings.Contains(out, `- id: PCIROOT(0)`) || !strings.Contains(out, "nvcuda.dll") {
		t.Errorf("%v\n%s", err, out)
	}
}
