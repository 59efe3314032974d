//go:build unix

package main

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/directx-nri/directx-nri/advertiser/config"
	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/shim/shimfile"
)

func TestFindRefused(t *testing.T) {
	t.Parallel()
	var all []specs.Mount
	for _, letter := range strings.Split("abcdefghijk", "") {
		all = append(all, specs.Mount{Source: letter})
	}
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
		"only together":            {refuses: []string{"bj"}, want: "j", starts: 10},
		"only together, and one":   {refuses: []string{"bj", "cd", "f"}, want: "dfj", starts: 18},
		"containers stop to start": {refuses: []string{"c"}, dies: 3, failed: "means nothing", starts: 20},
		"it is unknown":            {refuses: []string{"?"}, failed: "no containerd", starts: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			starts := 0
			letters := func(files []specs.Mount) (text string) {
				for _, f := range files {
					text += f.Source
				}
				return text
			}
			start := func(files []specs.Mount) error {
				if starts++; test.dies > 0 && starts > test.dies {
					return refusal("nothing starts")
				}
				for _, group := range test.refuses {
					if group == "?" {
						return errors.New("no containerd")
					}
					if !strings.ContainsFunc(group, func(file rune) bool { return !strings.ContainsRune(letters(files), file) }) {
						return refusal("refused " + group)
					}
				}
				return nil
			}
			refused, err := findRefused(all, start)
			testutil.CheckError(t, "search", err, test.failed)
			if got := letters(refused); got != test.want || starts != test.starts {
				t.Errorf("refused %q after %d containers, want %q after %d", got, starts, test.want, test.starts)
			}
		})
	}
	if refused, err := findRefused(nil, nil); refused != nil || err != nil {
		t.Errorf("without files: %v, %v", refused, err)
	}
}

// TestFlagsRun: --run starts the container with the flags and all other arguments, and gives it standard input.
func TestFlagsRun(t *testing.T) {
	dir := t.TempDir()
	testutil.WriteFile(t, filepath.Join(dir, "nerdctl"), "#!/bin/sh\necho \"$@\"\ncat\nexit 7\n", 0o700)
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	stdout, _, err := runCommand(t.Context(), t, "input", "flags", "--for", "nerdctl", "--container-os", "windows", "--inventory", newInventory(t),
		"--gpus", "0", "--assume-files", "--run", "IMAGE", "cmd", "-c", "x")
	testutil.CheckError(t, "nerdctl", err, "nerdctl: exit status 7")
	for _, part := range []string{"run --rm --device vpci-location-path://PCIROOT(0)#PCI(1B00) --volume ", `--env DIRECTX_DEVICES=[{"locationPath"`, " IMAGE cmd -c x\ninput"} {
		if !strings.Contains(stdout, part) {
			t.Errorf("no %s in %s", part, stdout)
		}
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
		"the edits alone on the pause image": {
			rules: interlockEdits + "*' run '*=none*/pause:3.9*) ;; *' run '*) fail other;;",
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
		"only the first start fails": {
			rules: interlockEdits + "*' run '*) test -e DIR/tried || { touch DIR/tried; fail early; };;", want: []string{"starts   without a GPU\n"},
		},
		"no interlock":        {err: "in spite of the interlock"},
		"no container starts": {rules: "*' run '*) fail broken;;", err: "GPUs cannot be tested: broken"},
		"no GPU starts":       {rules: interlockEdits + "*--device*) fail 'no device';;", want: []string{"refused  with GPUs and 0 of 2"}, err: "even without driver files: no device"},
		"one is left behind":  {rules: "*' containers delete '*) fail 'it runs';;", err: "is left behind: it runs"},
		"no containerd":       {rules: "*) fail 'no socket';;", flags: []string{"--image", "any"}, err: "no socket", early: true},
		"no pause image":      {rules: "*) exit 0;;", err: "set --image", early: true},
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
			_, err := config.Compiler{File: filepath.Join(dir, "config.yaml"), StateDir: state, NodeOS: runtime.GOOS, Required: true}.Apply()
			testutil.NoError(t, err)
			args := append([]string{"--ctr", "sh," + filepath.Join(dir, "ctr"), "--state-dir", state}, test.flags...)
			out, _, err := runCommand(t.Context(), t, "", append([]string{"verify"}, args...)...)
			testutil.CheckError(t, "verify", err, test.err)
			for _, want := range test.want {
				if want = strings.ReplaceAll(want, "DIR", dir); !strings.Contains(out, want) {
					t.Errorf("no %q in\n%s", want, out)
				}
			}
			report, _ := os.ReadFile(filepath.Join(state, paths.VerifyFile))
			if got := string(report); test.early != (got == "") || !strings.Contains(got, out) || !test.early && !strings.Contains(got, test.err) {
				t.Errorf("the report is\n%s\nafter\n%s", got, out)
			}
		})
	}
}

func TestCtrHasALimit(t *testing.T) {
	t.Parallel()
	c := ctr{program: []string{"sh", "-c", "exec sleep 60"}, timeout: 300 * time.Millisecond}
	_, err := c.run(t.Context(), "images", "list")
	testutil.CheckError(t, "ctr", err, "ctr has not ended within 300ms")
}
