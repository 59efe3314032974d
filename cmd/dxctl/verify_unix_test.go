//go:build unix

package main

import (
	"errors"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/directx-nri/directx-nri/advertiser/config"
	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/durable"
	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/internal/pci"
	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/shim/shimfile"
)

// driverFiles returns mounts of files of the driver store C:\nv.
func driverFiles(names ...string) (mounts []specs.Mount) {
	for _, name := range names {
		mounts = append(mounts, specs.Mount{Source: `C:\nv\` + name, Destination: `C:\Windows\System32\` + name})
	}
	return mounts
}

func TestFindRefused(t *testing.T) {
	t.Parallel()
	all := driverFiles(strings.Split("abcdefghijk", "")...)
	for name, test := range map[string]struct {
		// refuses are groups of files, as letters, with which containers do not start.
		refuses []string
		// dies is the number of containers after which none starts, 0 for no limit.
		dies         int
		want, failed string
		starts       int
	}{
		"none":                     {starts: 1},
		"one":                      {refuses: []string{"c"}, want: "c", starts: 8},
		"the first and the last":   {refuses: []string{"a", "k"}, want: "ak", starts: 14},
		"all":                      {refuses: strings.Split("abcdefghijk", ""), want: "abcdefghijk", starts: 22},
		"only together":            {refuses: []string{"bj"}, want: "j"},
		"only together, and one":   {refuses: []string{"bj", "cd", "f"}, want: "dfj"},
		"three together":           {refuses: []string{"ack"}, want: "k"},
		"containers stop to start": {refuses: []string{"c"}, dies: 3, failed: "means nothing"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			starts := 0
			letters := func(files []specs.Mount) (text string) {
				for _, f := range files {
					text += strings.TrimPrefix(f.Source, `C:\nv\`)
				}
				return text
			}
			start := func(files []specs.Mount) string {
				if starts++; test.dies > 0 && starts > test.dies {
					return "nothing starts"
				}
				for _, group := range test.refuses {
					if !strings.ContainsFunc(group, func(file rune) bool { return !strings.ContainsRune(letters(files), file) }) {
						return "refused " + group
					}
				}
				return ""
			}
			refused, err := findRefused(all, start)
			testutil.CheckError(t, "search", err, test.failed)
			if err != nil {
				return
			}
			if got := letters(refused); got != test.want || test.starts != 0 && starts != test.starts {
				t.Errorf("refused %q after %d containers, want %q after %d", got, starts, test.want, test.starts)
			}
		})
	}
	if refused, err := findRefused(nil, nil); refused != nil || err != nil {
		t.Errorf("without files: %v, %v", refused, err)
	}
}

// After an error, no container is started.
func TestStartAfterAnError(t *testing.T) {
	t.Parallel()
	m := measurement{err: errors.New("no containerd")} // without a client
	if refused := m.startWithFlags(t.Context(), "a container", nil); refused != "" || m.result.Containers != nil {
		t.Errorf("%q %v", refused, m.result.Containers)
	}
}

func TestSettings(t *testing.T) {
	t.Parallel()
	devices := []discovery.Device{{VendorID: pci.VendorNVIDIA, DriverStorePath: `C:\NV`}, {VendorID: 0x1234, DriverStorePath: `C:\vendor`}, {DriverStorePath: `C:\unknown`}}
	for name, test := range map[string]struct{ refused, none, want []string }{
		"nothing refused": {},
		"a file": {refused: []string{`nv\b.dll`}, none: []string{`nv\a.dll`},
			want: []string{"driverFiles: none\n", "driverFiles: mount\nruntimeFiles:\n    nvidia:\n        remove:\n            - b.dll\n"}},
		"a file that remains with none": {refused: []string{`nv\sub\a.dll`}, none: []string{`nv\sub\a.dll`},
			want: []string{"driverFiles: mount\nruntimeFiles:\n    nvidia:\n        remove:\n            - sub/a.dll\n"}},
		"files of two vendors": {refused: []string{`nv\a.dll`, `vendor\b.dll`, `nv\c.dll`},
			want: []string{"driverFiles: none\n",
				"driverFiles: mount\nruntimeFiles:\n    \"0x1234\":\n        remove:\n            - b.dll\n    nvidia:\n        remove:\n            - a.dll\n            - c.dll\n"}},
		"of an unknown vendor": {refused: []string{`unknown\a.dll`}, want: []string{"driverFiles: none\n"}},
		"elsewhere":            {refused: []string{`link\a.dll`}, want: []string{"driverFiles: none\n"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mounts := func(paths []string) (list []specs.Mount) {
				for _, path := range paths {
					list = append(list, specs.Mount{Source: `C:\` + path, Destination: path})
				}
				return list
			}
			if diff := cmp.Diff(test.want, recommendedSettings(mounts(test.refused), mounts(test.none), devices)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestVerify runs the command with a script as ctr; the suites run it with the real one.
func TestVerify(t *testing.T) {
	t.Parallel()
	const interlockEdits = "*/proc/directx-nri-did-not*) fail 'inside /proc';; "
	for name, test := range map[string]struct {
		rules string // of the script, in order
		flags []string
		want  []string // in the output
		err   string
		early bool // there is no report
	}{
		"fine": {rules: interlockEdits, want: []string{"refused  with the interlock, which must be refused: inside /proc\n", "starts   as configured\n"}},
		"the shim and a pause image": {
			rules: interlockEdits + "*' run '*=none*/pause:3.9*|*' run '*visible-devices=0*/pause:3.9*) ;; *' run '*) fail other;;",
			flags: []string{"--runtime", shimfile.RuntimeName, "--gpus", "0"},
		},
		"a file is refused": {
			rules: interlockEdits + "*/libcuda.so*) fail 'invalid\n  parameter';;",
			want:  []string{"refused  with GPUs and 2 of 2 driver files: invalid parameter\n", "starts   with GPUs and 1 of 2", "refuses DIR/libcuda.so."},
			err:   "do not start as configured: invalid parameter",
		},
		"no container starts anymore": {
			rules: interlockEdits + "*/libcuda.so*) touch DIR/dead; fail refused;; *' run '*) test ! -e DIR/dead || fail dead;;", err: "means nothing: dead",
		},
		"no interlock":        {err: "in spite of the interlock"},
		"no container starts": {rules: "*' run '*) fail broken;;", err: "GPUs cannot be tested: broken"},
		"no GPU starts":       {rules: interlockEdits + "*--device*) fail 'no device';;", want: []string{"refused  as configured"}, err: "even without driver files: no device"},
		"one is left behind":  {rules: "*' containers delete '*) fail 'it runs';;", err: "is left behind: it runs"},
		"no containerd":       {rules: "*) fail 'no socket';;", flags: []string{"--image", "any"}, err: "no socket", early: true},
		"no pause image":      {rules: "*) exit 0;;", err: "set --image", early: true},
		"no answer":           {rules: "*' run '*) exec sleep 60;;", flags: []string{"--timeout", "300ms"}, err: "ctr has not ended within 300ms"},
		"no time":             {flags: []string{"--timeout", "0s"}, err: "positive", early: true},
		"a command alone":     {flags: []string{"--", "true"}, err: "--image", early: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			for file, text := range map[string]string{
				"libcuda.so": "", "libother.so": "",
				"config.yaml": "apiVersion: " + config.APIVersion + "\nkind: " + config.Kind + "\ninventory: DIR/gpus.yaml\n",
				"gpus.yaml": "apiVersion: directx.microsoft.com/v1alpha1\nkind: Inventory\ndevices:\n" +
					"- {instanceID: GPU-0, display: true, linux: {deviceNodes: [/dev/null], libraries: [DIR/libcuda.so, DIR/libother.so]}}\n",
				"ctr": "fail() { echo 'level=warning msg=first' >&2; echo \"ctr: $1\" >&2; exit 1; }\ncase \"$* \" in " + test.rules +
					" *' images list '*) printf 'a.test/pause:3.9\\na.test/pause:3.6\\nz.test/other:1\\n';; esac\n",
			} {
				testutil.WriteFile(t, filepath.Join(dir, file), strings.ReplaceAll(text, "DIR", dir), 0o600)
			}
			state := filepath.Join(dir, "state")
			compiled, err := config.Compiler{File: filepath.Join(dir, "config.yaml"), StateDir: state, NodeOS: runtime.GOOS, Required: true}.Compile()
			testutil.NoError(t, err, config.Install(state, compiled))
			args := append([]string{"--ctr", "sh," + filepath.Join(dir, "ctr"), "--state-dir", state}, test.flags...)
			out, _, err := runCommand(t.Context(), t, "", append([]string{"verify"}, args...)...)
			testutil.CheckError(t, "verify", err, test.err)
			for _, want := range test.want {
				if want = strings.ReplaceAll(want, "DIR", dir); !strings.Contains(out, want) {
					t.Errorf("no %q in\n%s", want, out)
				}
			}
			if known := err == nil || strings.Contains(test.err, "as configured"); strings.Contains(out, "This node refuses") && !known {
				t.Errorf("the result is unknown, and the output has one:\n%s", out)
			}
			if durable.Exists(filepath.Join(state, paths.VerifyFile)) == test.early {
				t.Errorf("a result: %t, after\n%s", !test.early, out)
			}
		})
	}
}
