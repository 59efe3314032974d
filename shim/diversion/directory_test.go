package diversion

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

func TestDirectory(t *testing.T) {
	t.Parallel()
	const (
		shim, daemon = "containerd-shim-runhcs-v1.exe", "containerd.exe"
		k, rke       = `C:\k`, `C:\var\lib\rancher\rke2\data\v1\bin`
		next         = `C:\var\lib\rancher\rke2\data\v2\bin`
	)
	for name, test := range map[string]struct {
		processes  []process // this process is 1
		searchPath []string
		files      []string
		want, left string
		err        error
	}{
		"the shim of this container, though others run": {
			processes: []process{{1, 2, "directx-advertiser.exe", ""}, {2, 3, shim, k + `\` + shim}, {4, 3, shim, rke + `\` + shim}}, want: k,
		},
		"the moved shim, of a command of this container": {
			processes: []process{{1, 9, "a.exe", ""}, {9, 2, "cmd.exe", ""}, {2, 3, shim, k + `\DirectX-NRI\` + shim}}, want: k,
		},
		"a circle of IDs": {
			processes: []process{{1, 2, "a.exe", ""}, {2, 1, "b.exe", ""}, {5, 6, shim, rke + `\` + shim}}, want: rke,
		},
		"the running shims, moved and not": {
			processes: []process{{2, 3, shim, `c:\K\` + shim}, {5, 3, shim, k + `\directx-nri\new-1\` + shim}, {4, 3, "Containerd-Shim-Runhcs-v1.exe", k + `\directx-nri\` + shim}}, want: `C:\K`,
		},
		"running shims of several directories": {
			processes: []process{{2, 3, shim, k + `\` + shim}, {4, 3, shim, rke + `\` + shim}}, err: ErrSeveralDirectories,
		},
		"a shim that has ended": {
			processes: []process{{2, 3, shim, ""}, {3, 0, daemon, k + `\` + daemon}}, files: []string{k + `\` + shim}, want: k,
		},
		"beside containerd": {
			processes: []process{{3, 0, daemon, k + `\` + daemon}}, files: []string{k + `\` + shim, rke + `\` + shim}, want: k,
		},
		"interrupted, beside containerd": {
			processes: []process{{3, 0, daemon, k + `\` + daemon}}, files: []string{k + `\directx-nri\` + shim}, want: k,
		},
		"on containerd's PATH": {
			processes: []process{{3, 0, daemon, k + `\` + daemon}}, searchPath: []string{`C:\Windows`, rke}, files: []string{rke + `\` + shim}, want: rke,
		},
		"beside containerd and on its PATH": {
			processes: []process{{3, 0, daemon, k + `\` + daemon}}, searchPath: []string{rke}, files: []string{k + `\` + shim, rke + `\` + shim}, err: ErrSeveralDirectories,
		},
		"an update of containerd, in a container that is older": {
			processes: []process{
				{1, 2, "a.exe", ""}, {2, 3, shim, rke + `\directx-nri\` + shim}, {4, 3, shim, rke + `\` + shim}, {5, 0, daemon, next + `\` + daemon},
			},
			files: []string{rke + `\` + daemon, next + `\` + shim}, want: next, left: rke,
		},
		"shims of before and after an update": {
			processes: []process{{2, 3, shim, rke + `\` + shim}, {4, 5, shim, next + `\` + shim}, {5, 0, daemon, next + `\` + daemon}},
			files:     []string{rke + `\` + daemon}, want: next, left: rke,
		},
		"containerd restarts": {processes: []process{{2, 3, shim, k + `\` + shim}}, files: []string{k + `\` + daemon}, want: k},
		"the shim is not beside containerd": {
			processes: []process{{1, 2, "a.exe", ""}, {2, 5, shim, k + `\` + shim}, {5, 0, daemon, next + `\` + daemon}},
			files:     []string{next + `\` + shim}, want: k,
		},
		"on PATH, without containerd": {searchPath: []string{rke}, files: []string{rke + `\` + shim}, err: ErrUnknownDirectory},
		"nothing":                     {processes: []process{{1, 2, "a.exe", ""}}, err: ErrUnknownDirectory},
	} {
		s := system{self: 1, processes: test.processes, searchPath: test.searchPath,
			exists: func(path string) bool { return slices.Contains(test.files, path) }}
		got, left, err := directory(s)
		if got != test.want || strings.Join(left, " ") != test.left || !errors.Is(err, test.err) {
			t.Errorf("%s: %q, left %q, %v", name, got, left, err)
		}
	}
}
