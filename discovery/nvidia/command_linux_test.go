package nvidia

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/directx-nri/directx-nri/internal/access"
	"github.com/directx-nri/directx-nri/internal/testutil"
)

func TestRun(t *testing.T) {
	t.Parallel()
	const printTwo = `printf '00000000:01:00.0, ` + testUUID + `\n0000000a:02:00.0, GPU-x\r\n\nFailed, badly\n'`
	for name, test := range map[string]struct{ script, want, err string }{
		"two GPUs": {
			script: `[ "$*" = "--query-gpu=pci.bus_id,uuid --format=csv,noheader" ] && ` + printTwo,
			want:   "map[00000000:01:00.0:" + testUUID + " 0000000A:02:00.0:GPU-x]",
		},
		"a third GPU is lost": {script: printTwo + "; exit 15", want: "map[00000000:01:00.0:" + testUUID + " 0000000A:02:00.0:GPU-x]", err: "exit status 15"},
		"no GPU":              {script: "echo No devices were found; exit 6", want: "map[]", err: "exit status 6"},
		"it hangs":            {script: "exec sleep 100", want: "map[]", err: "deadline exceeded"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			limit := testutil.Timeout
			if name == "it hangs" {
				limit = 300 * time.Millisecond
			}
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			uuids, err := run(ctx, exec.CommandContext(ctx, "sh", "-c", test.script, "nvidia-smi"))
			testutil.CheckError(t, "run", err, test.err)
			if fmt.Sprint(uuids) != test.want {
				t.Errorf("%v, want %s", uuids, test.want)
			}
		})
	}
}

// TestNewCommand has the programs of a VM below the root directory of a container.
func TestNewCommand(t *testing.T) {
	t.Parallel()
	const missing = "no such file"
	loader := "/usr/lib64/" + map[string]string{"amd64": "ld-linux-x86-64.so.2", "arm64": "ld-linux-aarch64.so.1"}[runtime.GOARCH]
	for name, test := range map[string]struct {
		programs map[string]fs.FileMode
		want     []string
		err      string
	}{
		"WSL":                         {map[string]fs.FileMode{wslLibraries + "/nvidia-smi": 0o755, loader: 0o755}, []string{loader, wslLibraries + "/nvidia-smi"}, ""},
		"Hyper-V":                     {map[string]fs.FileMode{"/usr/bin/nvidia-smi": 0o755, loader: 0o755}, []string{loader, "/usr/bin/nvidia-smi"}, ""},
		"missing":                     {map[string]fs.FileMode{loader: 0o755}, nil, missing},
		"no glibc":                    {map[string]fs.FileMode{"/usr/bin/nvidia-smi": 0o755}, nil, missing},
		"others can write it":         {map[string]fs.FileMode{"/usr/bin/nvidia-smi": 0o757}, nil, access.ErrUntrusted.Error()},
		"others can write libraries":  {map[string]fs.FileMode{"/usr/bin/nvidia-smi": 0o755, wslLibraries + "/libcuda.so.1": 0o755, wslLibraries: 0o757}, nil, access.ErrUntrusted.Error()},
		"others can write the loader": {map[string]fs.FileMode{"/usr/bin/nvidia-smi": 0o755, loader: 0o757}, nil, access.ErrUntrusted.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			for path, mode := range test.programs {
				if path != wslLibraries {
					testutil.WriteFile(t, filepath.Join(root, path), "", mode)
				}
			}
			for path, mode := range test.programs {
				testutil.NoError(t, os.Chmod(filepath.Join(root, path), mode))
			}
			command, err := newCommand(t.Context(), root, nil)
			testutil.CheckError(t, "find", err, test.err)
			if err == nil && (!slices.Equal(command.Args, test.want) || command.SysProcAttr.Chroot != root) {
				t.Errorf("it runs %q in %+v", command.Args, command.SysProcAttr)
			}
		})
	}
}
