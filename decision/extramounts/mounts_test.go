//go:build linux

package extramounts

import (
	"errors"
	"io/fs"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/discovery/hostfiles"
	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/winpath"
	"github.com/directx-nri/directx-nri/ocispec/gpuedits"
)

const (
	repository = `C:\Windows\System32\DriverStore\FileRepository`
	store      = repository + `\nv.inf_amd64_1`
	otherStore = repository + `\amd.inf_amd64_2`
)

// node is the files of a Windows node. The path of a directory ends with a
// separator; other files have a content, and those without one cannot be read.
// links are the targets of links and junctions.
type node struct{ files, links map[string]string }

func windowsNode() node {
	return node{
		files: map[string]string{
			store + `\nvidia-smi.exe`: "smi", store + `\nvcuda_loader64.dll`: "cuda", store + `\x86\tool.exe`: "tool", store + `\dir\`: "", store + `\kernel32.dll`: "another",
			otherStore + `\amd.exe`: "amd", otherStore + `\x86\tool.exe`: "tool", repository + `\secret.inf_1\secret.txt`: "secret", repository + `\nv.inf_amd64_12\next.txt`: "next",
			`C:\Windows\System32\kernel32.dll`: "Windows", `C:\Windows\System32\nvidia-smi.exe`: "smi", `C:\Windows\System32\drivers\`: "", `C:\Windows\System32\held.dll`: "",
			`C:\tools\trace.exe`: "trace", `C:\tools\sub\deep.exe`: "deep", `C:\toolsmith\no.exe`: "no", `C:\secret\key.pem`: "key", `\\server\share\a.dll`: "share",
		},
		links: map[string]string{
			store + `\away.txt`: repository + `\secret.inf_1\secret.txt`, store + `\within.dll`: store + `\nvcuda_loader64.dll`, store + `\dir\up`: repository + `\secret.inf_1`,
			store + `\neighbor.txt`: repository + `\nv.inf_amd64_12\next.txt`, store + `\dangling.txt`: store + `\nowhere`, store + `\share`: `\\server\share`, store + `\secret`: `C:\secret`,
			`C:\tools\away.pem`: `C:\secret\key.pem`, `C:\moved`: `C:\tools`,
		},
	}
}

func (n node) Resolve(path string) (string, bool, error) {
	for link, target := range n.links {
		if winpath.EqualOrBelow(link, path) {
			path = target + path[len(link):]
		}
	}
	for file := range n.files {
		if winpath.EqualOrBelow(path, file) {
			return file[:len(winpath.Clean(path))], winpath.Equal(path, file) && !strings.HasSuffix(file, `\`), nil
		}
	}
	return "", false, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
}

func (n node) SameContent(a, b string) (bool, error) {
	if n.files[a] == "" || n.files[b] == "" {
		return false, errors.New("access is denied")
	}
	return n.files[a] == n.files[b], nil
}

func devices() []discovery.Device {
	return []discovery.Device{
		{InstanceID: "none"},
		{InstanceID: "nv", DriverStorePath: store},
		{InstanceID: "amd", DriverStorePath: otherStore},
	}
}

func windowsResolver(files Files, changes []func(*Resolver)) Resolver {
	r := Resolver{OS: "windows", Files: files, ExtraMounts: policy.ExtraMounts{Sources: policy.MountSourcesDriverStore, Max: 4}}
	for _, change := range changes {
		change(&r)
	}
	return r
}

func withDirs(dirs ...string) func(*Resolver) {
	return func(r *Resolver) { r.Sources, r.HostDirectories = policy.MountSourcesHostDirectories, dirs }
}

func into(dirs ...string) func(*Resolver) {
	return func(r *Resolver) { r.Destinations = dirs }
}

// checkMounts checks the mounts (source > destination), or the error, of a request for files in a
// container that has a driver file.
func checkMounts(t *testing.T, r Resolver, files []requestedFile, want []string, wantErr error) {
	t.Helper()
	given := []specs.Mount{{Source: store + `\NVCUDA_loader64.dll`, Destination: `c:\windows\system32\nvcuda.dll`}}
	mounts, err := r.mounts(files, devices(), given)
	var got []string
	for _, m := range mounts {
		got = append(got, m.Source+" > "+m.Destination)
		if !slices.Contains(m.Options, "ro") {
			t.Errorf("%s has the options %v", m.Destination, m.Options)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" || !errors.Is(err, wantErr) {
		t.Errorf("%+v: error %v, want %v; mounts (-want +got):\n%s", files, err, wantErr, diff)
	}
	if err == nil {
		return
	}
	if text := errlog.Text(err); strings.ContainsAny(text, "\n\r") {
		t.Errorf("the error is not one line: %s", text)
	}
}

func TestFilesThatAreGranted(t *testing.T) {
	t.Parallel()
	root := windowsNode()
	for name, test := range map[string]struct {
		files  []requestedFile
		policy []func(*Resolver)
		want   []string // source > destination
	}{
		"nothing": {files: []requestedFile{}},
		"by name": {files: []requestedFile{{Source: "nvcuda_loader64.dll"}}, want: []string{store + `\nvcuda_loader64.dll > C:\Windows\System32\nvcuda_loader64.dll`}},
		"under another name": {files: []requestedFile{{Source: "nvcuda_loader64.dll", Destination: "x.dll"}},
			want: []string{store + `\nvcuda_loader64.dll > C:\Windows\System32\x.dll`}},
		"for 32-bit programs": {files: []requestedFile{{Source: `x86\tool.exe`, Destination: `C:\Windows\SysWOW64\tool.exe`}}, want: []string{store + `\x86\tool.exe > C:\Windows\SysWOW64\tool.exe`}},
		"either separator":    {files: []requestedFile{{Source: "x86/tool.exe"}}, want: []string{store + `\x86\tool.exe > C:\Windows\System32\tool.exe`}},
		"several": {files: []requestedFile{{Source: "amd.exe"}, {Source: `x86\tool.exe`}},
			want: []string{otherStore + `\amd.exe > C:\Windows\System32\amd.exe`,
				store + `\x86\tool.exe > C:\Windows\System32\tool.exe`}},
		"below System32, a new name": {files: []requestedFile{{Source: "amd.exe", Destination: `C:\Windows\System32\amd\a.exe`}},
			want: []string{otherStore + `\amd.exe > C:\Windows\System32\amd\a.exe`}},
		"the same twice is one":          {files: []requestedFile{{Source: "amd.exe"}, {Source: "amd.exe"}}, want: []string{otherStore + `\amd.exe > C:\Windows\System32\amd.exe`}},
		"what the container gets anyway": {files: []requestedFile{{Source: "nvcuda_loader64.dll", Destination: "nvcuda.dll"}}},
		"the same file as the node's":    {files: []requestedFile{{Source: "nvidia-smi.exe"}}, want: []string{store + `\nvidia-smi.exe > C:\Windows\System32\nvidia-smi.exe`}},
		"of a host directory": {files: []requestedFile{{Source: `C:\tools\sub\deep.exe`}}, policy: []func(*Resolver){withDirs(`C:\else`, `C:\tools`)},
			want: []string{`C:\tools\sub\deep.exe > C:\Windows\System32\deep.exe`}},
		"of a host directory in any case": {files: []requestedFile{{Source: "c:/tools/trace.exe"}}, policy: []func(*Resolver){withDirs(`C:\TOOLS\`)},
			want: []string{`C:\tools\trace.exe > C:\Windows\System32\trace.exe`}},
		"driver store and host directories": {files: []requestedFile{{Source: "amd.exe"}}, policy: []func(*Resolver){withDirs(`C:\tools`)},
			want: []string{otherStore + `\amd.exe > C:\Windows\System32\amd.exe`}},
		"to a directory of the policy": {files: []requestedFile{{Source: "amd.exe", Destination: `C:\app\bin\a.exe`}}, policy: []func(*Resolver){into(`C:\app`)},
			want: []string{otherStore + `\amd.exe > C:\app\bin\a.exe`}},
		"a link within": {files: []requestedFile{{Source: "within.dll"}}, want: []string{store + `\nvcuda_loader64.dll > C:\Windows\System32\within.dll`}},
		"a host directory that is a link": {files: []requestedFile{{Source: `C:\moved\trace.exe`}}, policy: []func(*Resolver){withDirs(`C:\moved`)},
			want: []string{`C:\tools\trace.exe > C:\Windows\System32\trace.exe`}},
		"letters beyond ASCII": {files: []requestedFile{{Source: "amd.exe", Destination: "Gru\u0308nfläche.exe"}},
			want: []string{otherStore + `\amd.exe > C:\Windows\System32\` + "Gru\u0308nfläche.exe"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			checkMounts(t, windowsResolver(root, test.policy), test.files, test.want, nil)
		})
	}
}

func TestFilesThatAreRefused(t *testing.T) {
	t.Parallel()
	root := windowsNode()
	for name, test := range map[string]struct {
		files  []requestedFile
		policy []func(*Resolver)
		want   error
	}{
		"off":                             {files: []requestedFile{{Source: "amd.exe"}}, policy: []func(*Resolver){func(r *Resolver) { r.Sources = policy.MountSourcesNone }}, want: errOff},
		"no policy at all":                {files: []requestedFile{{Source: "amd.exe"}}, policy: []func(*Resolver){func(r *Resolver) { r.ExtraMounts = policy.ExtraMounts{} }}, want: errOff},
		"too many":                        {files: []requestedFile{{Source: "a"}, {Source: "b"}, {Source: "c"}, {Source: "d"}, {Source: "e"}}, want: errTooMany},
		"missing":                         {files: []requestedFile{{Source: "nothere.exe"}}, want: errMissing},
		"a directory":                     {files: []requestedFile{{Source: "dir"}}, want: errNotFile},
		"one good, one not":               {files: []requestedFile{{Source: "amd.exe"}, {Source: "nothere.exe"}}, want: errMissing},
		"absolute by default":             {files: []requestedFile{{Source: store + `\nvidia-smi.exe`}}, want: errSource},
		"no directory of the policy":      {files: []requestedFile{{Source: `C:\secret\key.pem`}}, policy: []func(*Resolver){withDirs(`C:\tools`)}, want: errSource},
		"a directory that begins alike":   {files: []requestedFile{{Source: `C:\toolsmith\no.exe`}}, policy: []func(*Resolver){withDirs(`C:\tools`)}, want: errSource},
		"the directory itself":            {files: []requestedFile{{Source: `C:\tools`}}, policy: []func(*Resolver){withDirs(`C:\tools`)}, want: errSource},
		"a directory in a host directory": {files: []requestedFile{{Source: `C:\tools\sub`}}, policy: []func(*Resolver){withDirs(`C:\tools`)}, want: errNotFile},
		"another drive":                   {files: []requestedFile{{Source: `D:\tools\trace.exe`}}, policy: []func(*Resolver){withDirs(`C:\tools`)}, want: errSource},
		"destination with a directory":    {files: []requestedFile{{Source: "amd.exe", Destination: `sub\a.exe`}}, want: errDestination},
		"destination elsewhere":           {files: []requestedFile{{Source: "amd.exe", Destination: `C:\app\a.exe`}}, want: errDestination},
		"destination begins alike":        {files: []requestedFile{{Source: "amd.exe", Destination: `C:\Windows\System32x\a.exe`}}, want: errDestination},
		"destination is the directory":    {files: []requestedFile{{Source: "amd.exe", Destination: `C:\Windows\System32`}}, want: errDestination},
		"destination's other drive":       {files: []requestedFile{{Source: "amd.exe", Destination: `D:\Windows\System32\a.exe`}}, want: errDestination},
		"System32 is not in policy":       {files: []requestedFile{{Source: "amd.exe"}}, policy: []func(*Resolver){into(`C:\app`)}, want: errDestination},
		"a file of Windows":               {files: []requestedFile{{Source: "kernel32.dll"}}, want: errSystemFile},
		"what cannot be compared":         {files: []requestedFile{{Source: "amd.exe", Destination: "held.dll"}}, want: errSystemFile},
		"a directory of Windows":          {files: []requestedFile{{Source: "amd.exe", Destination: "drivers"}}, want: errSystemFile},
		"Windows' file, by its path":      {files: []requestedFile{{Source: "amd.exe", Destination: "c:/windows/System32/kernel32.dll"}}, policy: []func(*Resolver){into(`C:\`)}, want: errSystemFile},
		"a driver's place":                {files: []requestedFile{{Source: "amd.exe", Destination: "NVCUDA.dll"}}, want: errTaken},
		"two files at one place":          {files: []requestedFile{{Source: "amd.exe", Destination: "a.exe"}, {Source: `x86\tool.exe`, Destination: "A.EXE"}}, want: errTaken},
		// A link or junction is judged by where it leads.
		"a link to another driver":       {files: []requestedFile{{Source: "away.txt"}}, want: errLeadsOut},
		"a directory that leads out":     {files: []requestedFile{{Source: `dir\up\secret.txt`}}, want: errLeadsOut},
		"a link to what begins alike":    {files: []requestedFile{{Source: "neighbor.txt"}}, want: errLeadsOut},
		"a link to another directory":    {files: []requestedFile{{Source: `secret\key.pem`}}, want: errLeadsOut},
		"a junction to a network share":  {files: []requestedFile{{Source: `share\a.dll`}}, want: errLeadsOut},
		"a link to nothing":              {files: []requestedFile{{Source: "dangling.txt"}}, want: errMissing},
		"a link out of a host directory": {files: []requestedFile{{Source: `C:\tools\away.pem`}}, policy: []func(*Resolver){withDirs(`C:\tools`)}, want: errLeadsOut},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			checkMounts(t, windowsResolver(root, test.policy), test.files, nil, test.want)
		})
	}
}

// TestWindowsPathsThatAreRefused: as a source and as a destination alike.
func TestWindowsPathsThatAreRefused(t *testing.T) {
	t.Parallel()
	r := windowsResolver(windowsNode(), nil)
	for _, path := range []string{
		"", `..\secret.inf_1\secret.txt`, "../secret.inf_1/secret.txt", `x86\..\amd.exe`, `.\amd.exe`, `C:\`, `x86\\tool.exe`, `dir\`,
		// Streams of files and of a directory, and the current directory of a drive.
		"amd.exe:hidden", "kernel32.dll::$DATA", `x86:$I30:$INDEX_ALLOCATION\tool.exe`, "C:", "C:trace.exe",
		// Devices, literal paths, network shares, and the current drive.
		`\\.\PhysicalDrive0`, `\??\C:\tools\trace.exe`, `\\?\C:\tools\trace.exe`, "//?/C:/tools/trace.exe", `\\server\share\a.exe`, "//server/share/a.exe", `\tools\trace.exe`,
		"NUL", "con.txt", "Com1 .dll", "COM¹", `aux\a.dll`,
		"amd.exe.", "amd.exe ", `...\amd.exe`,
		"NVCUDA~1.DLL", `C:\PROGRA~1\a.exe`,
		"*.exe", "amd<exe", "a\u0001.exe", "a\u007f.exe",
		"\uff41md.exe", "x86\uff3ctool.exe", "\uff0e\uff0e\\a", // full-width: a letter, a backslash and dots
		"x86\u2215tool.exe", "amd\u200b.exe", "amd\u202eexe.dll", "\u212aernel32.dll", // a division slash, no width, right to left, and the Kelvin sign
	} {
		checkMounts(t, r, []requestedFile{{Source: path}}, nil, errName)
		if path != "" { // That is the source's name.
			checkMounts(t, r, []requestedFile{{Source: "amd.exe", Destination: path}}, nil, errName)
		}
	}
}

func TestLinuxContainers(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	command := exec.Command("sh", "-c", `cd "$0" && mkdir -p opt/gpu/sub opt/gpux secret && `+
		`touch opt/gpu/lib.so opt/gpux/no.so secret/key && ln -s ../../secret/key opt/gpu/away.so`, root)
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for name, test := range map[string]struct {
		file requestedFile
		into []string
		want string
		err  error
	}{
		"of a host directory":     {file: requestedFile{Source: "/opt/gpu/lib.so"}, want: "/opt/gpu/lib.so > /usr/lib/wsl/lib/lib.so"},
		"under another name":      {file: requestedFile{Source: "/opt/gpu/lib.so", Destination: "a.so"}, want: "/opt/gpu/lib.so > /usr/lib/wsl/lib/a.so"},
		"what the node has there": {file: requestedFile{Source: "/opt/gpu/lib.so", Destination: "/opt/gpux/no.so"}, into: []string{"/opt/gpux"}, want: "/opt/gpu/lib.so > /opt/gpux/no.so"},
		"control character":       {file: requestedFile{Source: "/opt/gpu/a\u0085"}, err: errName},
		"to a directory":          {file: requestedFile{Source: "/opt/gpu/lib.so", Destination: "/srv/x/a.so"}, into: []string{"/srv"}, want: "/opt/gpu/lib.so > /srv/x/a.so"},
		"relative":                {file: requestedFile{Source: "lib.so"}, err: errNoStore},
		"elsewhere":               {file: requestedFile{Source: "/secret/key"}, err: errSource},
		"begins alike":            {file: requestedFile{Source: "/opt/gpux/no.so"}, err: errSource},
		"dots":                    {file: requestedFile{Source: "/opt/gpu/../../secret/key"}, err: errName},
		"two slashes":             {file: requestedFile{Source: "//opt/gpu/lib.so"}, err: errName},
		"backslash":               {file: requestedFile{Source: `/opt/gpu\lib.so`}, err: errName},
		"a link away":             {file: requestedFile{Source: "/opt/gpu/away.so"}, err: errLeadsOut},
		"a directory":             {file: requestedFile{Source: "/opt/gpu/sub"}, err: errNotFile},
		"missing":                 {file: requestedFile{Source: "/opt/gpu/no.so"}, err: errMissing},
		"destination":             {file: requestedFile{Source: "/opt/gpu/lib.so", Destination: "/etc/passwd"}, err: errDestination},
		"destination of dots":     {file: requestedFile{Source: "/opt/gpu/lib.so", Destination: "../a"}, err: errName},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := Resolver{OS: "linux", Files: hostfiles.Root(root), ExtraMounts: policy.ExtraMounts{
				Sources: policy.MountSourcesHostDirectories, HostDirectories: []string{"/opt/gpu"}, Destinations: test.into, Max: 1,
			}}
			var want []string
			if test.err == nil {
				want = []string{test.want}
			}
			checkMounts(t, r, []requestedFile{test.file}, want, test.err)
		})
	}
}

// A pod's author writes what is parsed here. Whatever it is: what is granted lies,
// resolved, in a driver's directory, and lands in a directory of the policy, read-only,
// on nothing of Windows' own.
func FuzzMounts(f *testing.F) {
	for _, seed := range []string{
		"nvidia-smi.exe", `[{"source": "x86/tool.exe", "destination": "C:/Windows/SysWOW64/tool.exe"}]`, `["..\\secret.inf_1\\secret.txt"]`,
		`\\?\C:\secret\key.pem`, `C:\secret\key.pem`, `[{"source": "amd.exe", "destination": "C:/Windows/System32/kernel32.dll"}]`,
		`[{"source": "amd.exe", "destination": "kernel32.dll::$DATA"}]`, "NVCUDA~1.DLL", "- NUL\n- b. # c\n-  a", `["a "]`, "{}", "[", "\x00",
		"- {", "'", `["\u`, "x86/../amd.exe", `[{"source": "amd.exe", "destination": "KERNEL32.DLL"}]`,
	} {
		f.Add(seed)
	}
	root := windowsNode()
	allowed := []string{gpuedits.System32Dir, gpuedits.SysWOW64Dir}
	f.Fuzz(func(t *testing.T, text string) {
		files, err := List{"list", text}.parse()
		if err != nil {
			if !errors.Is(err, errMalformed) || strings.ContainsAny(errlog.Text(err), "\n\r") {
				t.Fatalf("%q", err)
			}
			return
		}
		mounts, err := windowsResolver(root, nil).mounts(files, devices(), nil)
		if err != nil {
			if mounts != nil || strings.ContainsAny(errlog.Text(err), "\n\r") {
				t.Fatalf("%v, %q", mounts, err)
			}
			return
		}
		if len(mounts) > 4 {
			t.Fatalf("%d mounts", len(mounts))
		}
		for _, m := range mounts {
			in := func(dir string) bool { return strings.HasPrefix(m.Source, dir+`\`) }
			if !in(store) && !in(otherStore) || strings.Contains(m.Source, "..") || !slices.Equal(m.Options, []string{"ro"}) {
				t.Fatalf("%+v", m)
			}
			if !slices.ContainsFunc(allowed, func(dir string) bool {
				return strings.HasPrefix(winpath.Key(m.Destination), winpath.Key(dir)+`\`)
			}) ||
				winpath.Equal(m.Destination, gpuedits.System32Dir+`\kernel32.dll`) || strings.ContainsAny(m.Destination[2:], `:*?"<>|`) {
				t.Fatalf("%+v", m)
			}
		}
	})
}
