package nvidia

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/directx-nri/directx-nri/internal/access"
	"github.com/directx-nri/directx-nri/internal/testutil"
)

// Its subtests are not parallel: a program that is open for writing cannot run.
func TestNVIDIASMI(t *testing.T) {
	const two = "map[00000000:01:00.0:" + testUUID + " 0000000A:02:00.0:GPU-x]"
	for name, test := range map[string]struct {
		script string
		mode   os.FileMode
		want   string
		err    string
	}{
		"two GPUs": {
			`[ "$*" = "--query-gpu=pci.bus_id,uuid --format=csv,noheader" ] && printf '00000000:01:00.0, ` + testUUID + `\n0000000a:02:00.0, GPU-x\r\n\nFailed, badly\n'`,
			0o755, two, "",
		},
		"a third GPU is lost": {`printf '00000000:01:00.0, ` + testUUID + `\n0000000a:02:00.0, GPU-x\nGPU is lost\n'; exit 15`, 0o755, two, "exit status 15"},
		"no GPU":              {"echo No devices were found; exit 6", 0o755, "map[]", "exit status 6"},
		"it hangs":            {"exec sleep 100", 0o755, "map[]", "deadline exceeded"},
		"it is missing":       {"", 0, "map[]", errors.ErrUnsupported.Error()},
		"others can write it": {"echo a, GPU-b", 0o757, "map[]", access.ErrUntrusted.Error()},
		"others replace it":   {"echo a, GPU-b", 0o755, "map[]", access.ErrUntrusted.Error()},

		"in a container, no glibc": {"echo a, GPU-b", 0o755, "map[]", errors.ErrUnsupported.Error()},
		// What is found does not run.
		"in a container of Fedora":                     {"echo a, GPU-b", 0o755, "map[]", "/usr/lib64/ld-linux-x86-64.so.2: "},
		"in a container of Azure Linux":                {"echo a, GPU-b", 0o755, "map[]", "/usr/lib/ld-linux-x86-64.so.2: "},
		"in a container whose loader others can write": {"echo a, GPU-b", 0o755, "map[]", "/usr/lib/ld-linux-x86-64.so.2: " + access.ErrUntrusted.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			program := filepath.Join(t.TempDir(), "nvidia-smi")
			if test.mode != 0 {
				testutil.NoError(t, os.WriteFile(program, []byte("#!/bin/sh\n"+test.script+"\n"), 0o755), os.Chmod(program, test.mode))
			}
			root := "/" // The programs' default.
			if strings.HasPrefix(name, "in a container") {
				root, program = filepath.Dir(program), "/"+filepath.Base(program)
				testutil.WriteFile(t, filepath.Join(root, "usr/lib/another-linux-gnu/ld-linux-another.so.2"), "", 0o644)
				if runtime.GOARCH == "arm64" {
					test.err = strings.Replace(test.err, "x86-64.so.2", "aarch64.so.1", 1)
				}
				if loader, _, found := strings.Cut(test.err, ": "); found {
					testutil.WriteFile(t, filepath.Join(root, loader), "", 0o644)
					if strings.Contains(name, "others can write") {
						testutil.NoError(t, os.Chmod(filepath.Join(root, loader), 0o666))
					}
				}
			}
			if name == "others replace it" {
				testutil.NoError(t, os.Chmod(filepath.Dir(program), 0o777))
			}
			begin, timeout := time.Now(), testutil.Timeout
			if name == "it hangs" {
				timeout = 300 * time.Millisecond
			}
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			defer cancel()
			var uuids map[string]string
			command, err := commandBelow(ctx, root, program)
			if err == nil {
				uuids, err = run(ctx, command)
			}
			testutil.CheckError(t, "run", err, test.err)
			if fmt.Sprint(uuids) != test.want {
				t.Errorf("%v, want %s", uuids, test.want)
			}
			if took := time.Since(begin); took > 10*time.Second {
				t.Errorf("it took %s", took)
			}
		})
	}
}
