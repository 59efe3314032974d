//go:build linux

package dxg

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/directx-nri/directx-nri/internal/durable"
)

// Its subtests are not parallel: a program that is open for writing cannot run.
func TestNVIDIASMI(t *testing.T) {
	const uuid = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"
	for name, test := range map[string]struct {
		script string
		mode   os.FileMode
		want   string
	}{
		"two":     {`[ "$*" = "--query-gpu=pci.bus_id,uuid --format=csv,noheader" ] && printf '00000000:01:00.0, ` + uuid + `\n0000000a:02:00.0, x\n\nwarning\n'`, 0o755, "map[00000000:01:00.0:" + uuid + " 0000000A:02:00.0:x]"},
		"none":    {"exit 6", 0o755, "exit status 6"},
		"hangs":   {"exec sleep 100", 0o755, "deadline exceeded"},
		"missing": {"", 0, errors.ErrUnsupported.Error()},
		"open":    {"echo a, b", 0o757, durable.ErrUntrusted.Error()},

		"in a container, no glibc": {"echo a, b", 0o755, errors.ErrUnsupported.Error()},
		// What is found does not run.
		"in a container of Fedora":      {"echo a, b", 0o755, "/usr/lib64/ld-linux-x86-64.so.2: "},
		"in a container of Azure Linux": {"echo a, b", 0o755, "/usr/lib/ld-linux-x86-64.so.2: "},
	} {
		t.Run(name, func(t *testing.T) {
			program := filepath.Join(t.TempDir(), "nvidia-smi")
			if test.mode != 0 {
				if err := errors.Join(os.WriteFile(program, []byte("#!/bin/sh\n"+test.script+"\n"), 0o755), os.Chmod(program, test.mode)); err != nil {
					t.Fatal(err)
				}
			}
			begin := time.Now()
			root := "/" // The programs' default.
			if strings.HasPrefix(name, "in a container") {
				root, program = filepath.Dir(program), "/"+filepath.Base(program)
				if loader, _, found := strings.Cut(test.want, ": "); found {
					write(t, filepath.Join(root, loader), nil)
				}
			}
			uuids, err := queryNVIDIASMI(root, program, 300*time.Millisecond)
			got := fmt.Sprint(uuids)
			if err != nil {
				got = err.Error()
			}
			if !strings.Contains(got, test.want) || time.Since(begin) > 10*time.Second {
				t.Errorf("%s after %v, want %s", got, time.Since(begin), test.want)
			}
		})
	}
}
