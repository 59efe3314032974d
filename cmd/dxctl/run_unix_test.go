//go:build unix

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRunOutput(t *testing.T) {
	t.Parallel()
	golden(t, "run", transcript(t, t.TempDir(),
		"run --for ctr --index 0 --with-shim --dry-run --address /run/c.sock -n k8s.io -- --rm IMAGE ID",
		"run --for nerdctl --index 0 --with-shim --dry-run --frontend /opt/my/nerdctl -- -it IMAGE",
		"run --for ctr --path PCIROOT(0)#PCI(1B00) --with-shim --frontend /bin/echo -- --rm IMAGE ID -- --index",
	))
}

// A program's status is dxctl's own, and dxctl says nothing of it.
func TestRunEndsAsTheProgramDid(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	got := transcript(t, folder, "run --index 0 --with-shim --frontend /bin/false -- IMAGE")
	if !strings.HasSuffix(got, "IMAGE\ndxctl: exit status 1\n\n") {
		t.Errorf("%s", got)
	}
}

// The command goes to standard error: what the container prints stays alone.
func TestRunLeavesOutputAlone(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	transcript(t, folder, "devices") // It writes the inventory.
	command := newRunCommand()
	command.SetArgs([]string{
		"--inventory", filepath.Join(folder, "gpus.yaml"), "--shim-config", filepath.Join(folder, "none"),
		"--index", "0", "--with-shim", "--frontend", "/bin/echo", "--", "IMAGE",
	})
	var out, errs bytes.Buffer
	command.SetOut(&out)
	command.SetErr(&errs)
	if err := command.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	const args = "run --runtime io.containerd.directx.v1 --env DIRECTX_VISIBLE_DEVICES=0 IMAGE\n"
	if out.String() != args || errs.String() != "/bin/echo "+args {
		t.Errorf("%s, %s", &out, &errs)
	}
}

// The files of another node's drive stand below the folder that is named.
func TestFlagsOfMountedNode(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	store := filepath.Join(root, "C:", "Windows", "System32", "DriverStore", "FileRepository", "nv.inf_amd64_1")
	if err := os.MkdirAll(store, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(store, "nvcuda_loader64.dll"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	got := transcript(t, t.TempDir(), "flags --index 0 --container-os windows -o args --host-root "+root)
	if !strings.Contains(got, `dst=C:\Windows\System32\nvcuda.dll`) || strings.Contains(got, "SysWOW64\\nvcuda.dll,") || strings.Count(got, "not on disk") != 1 {
		t.Errorf("%s", got)
	}
}
