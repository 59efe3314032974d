package nvidia

import (
	"cmp"
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
	const script = "echo a, GPU-b"
	for name, test := range map[string]struct {
		script                       string // "": the program is missing
		inContainer                  bool
		loader                       string        // in a container: the error begins with it
		mode, parentMode, loaderMode os.FileMode   // 0: others cannot write
		timeout                      time.Duration // 0: that of tests
		want, err                    string        // want "": no GPU
	}{
		"two GPUs": {
			script: `[ "$*" = "--query-gpu=pci.bus_id,uuid --format=csv,noheader" ] && printf '00000000:01:00.0, ` + testUUID + `\n0000000a:02:00.0, GPU-x\r\n\nFailed, badly\n'`,
			want:   two,
		},
		"a third GPU is lost": {script: `printf '00000000:01:00.0, ` + testUUID + `\n0000000a:02:00.0, GPU-x\nGPU is lost\n'; exit 15`, want: two, err: "exit status 15"},
		"no GPU":              {script: "echo No devices were found; exit 6", err: "exit status 6"},
		"it hangs":            {script: "exec sleep 100", timeout: 300 * time.Millisecond, err: "deadline exceeded"},
		"it is missing":       {err: errors.ErrUnsupported.Error()},
		"others can write it": {script: script, mode: 0o757, err: access.ErrUntrusted.Error()},
		"others replace it":   {script: script, parentMode: 0o777, err: access.ErrUntrusted.Error()},

		"in a container, no glibc": {script: script, inContainer: true, err: errors.ErrUnsupported.Error()},
		// What is found does not run.
		"in a container of Fedora":      {script: script, inContainer: true, loader: "/usr/lib64/ld-linux-x86-64.so.2"},
		"in a container of Azure Linux": {script: script, inContainer: true, loader: "/usr/lib/ld-linux-x86-64.so.2"},
		"in a container whose loader others can write": {
			script: script, inContainer: true, loader: "/usr/lib/ld-linux-x86-64.so.2", loaderMode: 0o666, err: access.ErrUntrusted.Error(),
		},
	} {
		t.Run(name, func(t *testing.T) {
			program := filepath.Join(t.TempDir(), "nvidia-smi")
			testutil.NoError(t, os.Chmod(filepath.Dir(program), cmp.Or(test.parentMode, 0o700)))
			if test.script != "" {
				testutil.NoError(t, os.WriteFile(program, []byte("#!/bin/sh\n"+test.script+"\n"), 0o755), os.Chmod(program, cmp.Or(test.mode, 0o755)))
			}
			root := "/" // The programs' default.
			if test.inContainer {
				root, program = filepath.Dir(program), "/"+filepath.Base(program)
				testutil.WriteFile(t, filepath.Join(root, "usr/lib/another-linux-gnu/ld-linux-another.so.2"), "", 0o644)
			}
			if test.loader != "" {
				if runtime.GOARCH == "arm64" {
					test.loader = strings.Replace(test.loader, "x86-64.so.2", "aarch64.so.1", 1)
				}
				testutil.WriteFile(t, filepath.Join(root, test.loader), "", 0o644)
				testutil.NoError(t, os.Chmod(filepath.Join(root, test.loader), cmp.Or(test.loaderMode, 0o644)))
				test.err = test.loader + ": " + test.err
			}
			begin := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), cmp.Or(test.timeout, testutil.Timeout))
			defer cancel()
			var uuids map[string]string
			command, err := commandBelow(ctx, root, program)
			if err == nil {
				uuids, err = run(ctx, command)
			}
			testutil.CheckError(t, "run", err, test.err)
			if want := cmp.Or(test.want, "map[]"); fmt.Sprint(uuids) != want {
				t.Errorf("%v, want %s", uuids, want)
			}
			if took := time.Since(begin); took > 10*time.Second {
				t.Errorf("it took %s", took)
			}
		})
	}
}
