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
	"github.com/directx-nri/directx-nri/internal/hostfiles"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/winpath"
	"github.com/directx-nri/directx-nri/ocispec"
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
		if winpath.Within(link, path) {
			path = target + path[len(link):]
		}
	}
	for file := range n.files {
		if winpath.Within(path, file) {
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

func windowsPolicy(files Files) Policy {
	return Policy{OS: ocispec.Windows, Files: files, ExtraMounts: policy.ExtraMounts{Sources: policy.MountDriverStore, Max: 4}}
}

func withDirs(dirs ...string) func(*Policy) {
	return func(p *Policy) { p.Sources, p.HostDirectories = policy.MountHostDirectories, dirs }
}

func into(dirs ...string) func(*Policy) {
	return func(p *Policy) { p.Destinations = dirs }
}

func TestFilesThatAreGranted(t *testing.T) {
	t.Parallel()
	root := windowsNode()
	for name, test := range map[string]struct {
		text   string
		policy []func(*Policy)
		want   []string // source > destination
	}{
		"nothing":                           {text: `[]`},
		"by name":                           {text: `[nvcuda_loader64.dll]`, want: []string{store + `\nvcuda_loader64.dll > C:\Windows\System32\nvcuda_loader64.dll`}},
		"under another name":                {text: `[{source: nvcuda_loader64.dll, destination: x.dll}]`, want: []string{store + `\nvcuda_loader64.dll > C:\Windows\System32\x.dll`}},
		"for 32-bit programs":               {text: `[{source: x86\tool.exe, directory: SysWOW64}]`, want: []string{store + `\x86\tool.exe > C:\Windows\SysWOW64\tool.exe`}},
		"either separator":                  {text: `[x86/tool.exe]`, want: []string{store + `\x86\tool.exe > C:\Windows\System32\tool.exe`}},
		"of the second device":              {text: `[amd.exe]`, want: []string{otherStore + `\amd.exe > C:\Windows\System32\amd.exe`}},
		"several":                           {text: `[amd.exe, x86\tool.exe]`, want: []string{otherStore + `\amd.exe > C:\Windows\System32\amd.exe`, store + `\x86\tool.exe > C:\Windows\System32\tool.exe`}},
		"below System32, a new name":        {text: `[{source: amd.exe, destination: 'C:\Windows\System32\amd\a.exe'}]`, want: []string{otherStore + `\amd.exe > C:\Windows\System32\amd\a.exe`}},
		"the same twice is one":             {text: `[amd.exe, amd.exe]`, want: []string{otherStore + `\amd.exe > C:\Windows\System32\amd.exe`}},
		"what the container gets anyway":    {text: `[{source: nvcuda_loader64.dll, destination: nvcuda.dll}]`},
		"the same file as the node's":       {text: `[nvidia-smi.exe]`, want: []string{store + `\nvidia-smi.exe > C:\Windows\System32\nvidia-smi.exe`}},
		"of a host directory":               {text: `['C:\tools\sub\deep.exe']`, policy: []func(*Policy){withDirs(`C:\else`, `C:\tools`)}, want: []string{`C:\tools\sub\deep.exe > C:\Windows\System32\deep.exe`}},
		"of a host directory in any case":   {text: `['c:/tools/trace.exe']`, policy: []func(*Policy){withDirs(`C:\TOOLS\`)}, want: []string{`C:\tools\trace.exe > C:\Windows\System32\trace.exe`}},
		"driver store and host directories": {text: `[amd.exe]`, policy: []func(*Policy){withDirs(`C:\tools`)}, want: []string{otherStore + `\amd.exe > C:\Windows\System32\amd.exe`}},
		"to a directory of the policy":      {text: `[{source: amd.exe, destination: 'C:\app\bin\a.exe'}]`, policy: []func(*Policy){into(`C:\app`)}, want: []string{otherStore + `\amd.exe > C:\app\bin\a.exe`}},
		"letters beyond ASCII":              {text: `[{source: amd.exe, destination: 'Grünfläche.exe'}]`, want: []string{otherStore + `\amd.exe > C:\Windows\System32\Grünfläche.exe`}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := windowsPolicy(root)
			for _, change := range test.policy {
				change(&p)
			}
			requests, err := Parse("list", test.text)
			if err != nil {
				t.Fatal(err)
			}
			given := []specs.Mount{{Source: store + `\NVCUDA_loader64.dll`, Destination: `c:\windows\system32\nvcuda.dll`}}
			mounts, err := p.Mounts(requests, devices(), given)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, m := range mounts {
				got = append(got, m.Source+" > "+m.Destination)
				if !slices.Equal(m.Options, []string{"ro"}) {
					t.Errorf("%s has the options %v", m.Destination, m.Options)
				}
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("mounts (-want +got):\n%s", diff)
			}
		})
	}
}

func TestFilesThatAreRefused(t *testing.T) {
	t.Parallel()
	root := windowsNode()
	for name, test := range map[string]struct {
		text   string
		policy []func(*Policy)
		want   error
	}{
		"off":                             {text: `[amd.exe]`, policy: []func(*Policy){func(p *Policy) { p.Sources = policy.MountNothing }}, want: ErrOff},
		"no policy at all":                {text: `[amd.exe]`, policy: []func(*Policy){func(p *Policy) { p.ExtraMounts = policy.ExtraMounts{} }}, want: ErrOff},
		"too many":                        {text: `[a, b, c, d, e]`, want: ErrTooMany},
		"missing":                         {text: `[nothere.exe]`, want: ErrMissing},
		"a directory":                     {text: `[dir]`, want: ErrNotFile},
		"one good, one not":               {text: `[amd.exe, nothere.exe]`, want: ErrMissing},
		"dots":                            {text: `['..\secret.inf_1\secret.txt']`, want: ErrDots},
		"dots inside":                     {text: `['x86\..\amd.exe']`, want: ErrDots},
		"dots with slashes":               {text: `[../secret.inf_1/secret.txt]`, want: ErrDots},
		"one dot":                         {text: `['.\amd.exe']`, want: ErrDots},
		"three dots":                      {text: `['...\amd.exe']`, want: ErrTrailing},
		"stream":                          {text: `['amd.exe:hidden']`, want: ErrStream},
		"the file's own stream":           {text: `['amd.exe::$DATA']`, want: ErrStream},
		"stream of a directory":           {text: `['x86:$I30:$INDEX_ALLOCATION\tool.exe']`, want: ErrStream},
		"device path":                     {text: `['\\.\PhysicalDrive0']`, want: ErrDevicePath},
		"literal path":                    {text: `['\\?\C:\tools\trace.exe']`, want: ErrDevicePath},
		"literal path with slashes":       {text: `['//?/C:/tools/trace.exe']`, want: ErrDevicePath},
		"object manager path":             {text: `['\??\C:\tools\trace.exe']`, want: ErrDevicePath},
		"network path":                    {text: `['\\server\share\a.exe']`, want: ErrUNC},
		"network path with slashes":       {text: `['//server/share/a.exe']`, want: ErrUNC},
		"drive's current directory":       {text: `['C:trace.exe']`, want: ErrDriveRelative},
		"a drive":                         {text: `['C:']`, want: ErrDriveRelative},
		"current drive":                   {text: `['\tools\trace.exe']`, want: ErrDriveRelative},
		"a root":                          {text: `['C:\']`, want: ErrEmptyElement},
		"two separators":                  {text: `['x86\\tool.exe']`, want: ErrEmptyElement},
		"separator at the end":            {text: `['dir\']`, want: ErrEmptyElement},
		"reserved name":                   {text: `[NUL]`, want: ErrReservedName},
		"reserved, with an extension":     {text: `['con.txt']`, want: ErrReservedName},
		"reserved, spaces inside":         {text: `['Com1 .dll']`, want: ErrReservedName},
		"reserved, superscript":           {text: `['COM¹']`, want: ErrReservedName},
		"reserved directory":              {text: `['aux\a.dll']`, want: ErrReservedName},
		"dot at the end":                  {text: `['amd.exe.']`, want: ErrTrailing},
		"space at the end":                {text: `['amd.exe ']`, want: ErrTrailing},
		"wildcard":                        {text: `['*.exe']`, want: ErrCharacter},
		"control character":               {text: "[\"a\\u0001.exe\"]", want: ErrCharacter},
		"angle bracket":                   {text: `['amd<exe']`, want: ErrCharacter},
		"full-width separator":            {text: `['x86＼tool.exe']`, want: ErrCharacter},
		"full-width dots":                 {text: `['．．\a']`, want: ErrCharacter},
		"division slash":                  {text: `['x86∕tool.exe']`, want: ErrCharacter},
		"invisible":                       {text: "['amd\u200b.exe']", want: ErrCharacter},
		"right to left":                   {text: "['amd\u202eexe.dll']", want: ErrCharacter},
		"Kelvin sign":                     {text: "[{source: amd.exe, destination: '\u212aernel32.dll'}]", want: ErrCharacter},
		"short name":                      {text: `['NVCUDA~1.DLL']`, want: ErrShortName},
		"short name of a directory":       {text: `[{source: amd.exe, destination: 'C:\PROGRA~1\a.exe'}]`, policy: []func(*Policy){into(`C:\PROGRA~1`)}, want: ErrShortName},
		"absolute by default":             {text: `['` + store + `\nvidia-smi.exe']`, want: ErrSource},
		"no directory of the policy":      {text: `['C:\secret\key.pem']`, policy: []func(*Policy){withDirs(`C:\tools`)}, want: ErrSource},
		"a directory that begins alike":   {text: `['C:\toolsmith\no.exe']`, policy: []func(*Policy){withDirs(`C:\tools`)}, want: ErrSource},
		"the directory itself":            {text: `['C:\tools']`, policy: []func(*Policy){withDirs(`C:\tools`)}, want: ErrSource},
		"a directory in a host directory": {text: `['C:\tools\sub']`, policy: []func(*Policy){withDirs(`C:\tools`)}, want: ErrNotFile},
		"another drive":                   {text: `['D:\tools\trace.exe']`, policy: []func(*Policy){withDirs(`C:\tools`)}, want: ErrSource},
		"destination with a directory":    {text: `[{source: amd.exe, destination: 'sub\a.exe'}]`, want: ErrDestination},
		"destination elsewhere":           {text: `[{source: amd.exe, destination: 'C:\app\a.exe'}]`, want: ErrDestination},
		"destination begins alike":        {text: `[{source: amd.exe, destination: 'C:\Windows\System32x\a.exe'}]`, want: ErrDestination},
		"destination is the directory":    {text: `[{source: amd.exe, destination: 'C:\Windows\System32'}]`, want: ErrDestination},
		"destination's other drive":       {text: `[{source: amd.exe, destination: 'D:\Windows\System32\a.exe'}]`, want: ErrDestination},
		"System32 is not in policy":       {text: `[amd.exe]`, policy: []func(*Policy){into(`C:\app`)}, want: ErrDestination},
		"destination with dots":           {text: `[{source: amd.exe, destination: '..\a.exe'}]`, want: ErrDots},
		"destination's stream":            {text: `[{source: amd.exe, destination: 'kernel32.dll::$DATA'}]`, want: ErrStream},
		"destination is a device":         {text: `[{source: amd.exe, destination: '\\.\pipe\a'}]`, want: ErrDevicePath},
		"destination's dot at end":        {text: `[{source: amd.exe, destination: 'kernel32.dll.'}]`, want: ErrTrailing},
		"destination and directory":       {text: `[{source: amd.exe, destination: 'C:\Windows\System32\a.exe', directory: SysWOW64}]`, want: ErrDirectory},
		"a file of Windows":               {text: `[kernel32.dll]`, want: ErrSystemFile},
		"what cannot be compared":         {text: `[{source: amd.exe, destination: held.dll}]`, want: ErrSystemFile},
		"a directory of Windows":          {text: `[{source: amd.exe, destination: drivers}]`, want: ErrSystemFile},
		"Windows' file, by its path":      {text: `[{source: amd.exe, destination: 'c:/windows/System32/kernel32.dll'}]`, policy: []func(*Policy){into(`C:\`)}, want: ErrSystemFile},
		"a driver's place":                {text: `[{source: amd.exe, destination: NVCUDA.dll}]`, want: ErrTaken},
		"two files at one place":          {text: `[{source: amd.exe, destination: a.exe}, {source: x86\tool.exe, destination: A.EXE}]`, want: ErrTaken},
		"not a list":                      {text: `amd.exe`, want: ErrMalformed},
		"an unknown key":                  {text: `[{source: amd.exe, readOnly: false}]`, want: ErrMalformed},
		"no source":                       {text: `[{destination: amd.exe}]`, want: ErrMalformed},
		"an unknown directory":            {text: `[{source: amd.exe, directory: Temp}]`, want: ErrMalformed},
		"empty":                           {text: ``, want: ErrMalformed},
		"two documents":                   {text: "[a]\n---\n[b]", want: ErrMalformed},
		"broken list":                     {text: `[`, want: ErrMalformed},
		"too long":                        {text: `['` + strings.Repeat("a", 70<<10) + `']`, want: ErrMalformed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := windowsPolicy(root)
			for _, change := range test.policy {
				change(&p)
			}
			var mounts []specs.Mount
			requests, err := Parse("list", test.text)
			if err == nil {
				mounts, err = p.Mounts(requests, devices(), []specs.Mount{{Source: store + `\nvcuda_loader64.dll`, Destination: `C:\Windows\System32\nvcuda.dll`}})
			}
			if !errors.Is(err, test.want) || mounts != nil {
				t.Fatalf("%v, error %v, want %v", mounts, err, test.want)
			}
			if strings.ContainsAny(err.Error(), "\n\r") {
				t.Errorf("the error is not one line: %v", err)
			}
		})
	}
}

// A link or junction in the driver store, or in a directory of the policy, is judged
// by where it leads.
func TestLinksThatLeadOut(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		source string
		want   string
		err    error
	}{
		"to another driver's directory":   {source: `away.txt`, err: ErrLeadsOut},
		"within":                          {source: `within.dll`, want: store + `\nvcuda_loader64.dll`},
		"a directory on the way":          {source: `dir\up\secret.txt`, err: ErrLeadsOut},
		"to a directory that begins like": {source: `neighbor.txt`, err: ErrLeadsOut},
		"to another drive or directory":   {source: `secret\key.pem`, err: ErrLeadsOut},
		"to a network share":              {source: `share\a.dll`, err: ErrLeadsOut},
		"to nothing":                      {source: `dangling.txt`, err: ErrMissing},
		"out of a host directory":         {source: `C:\tools\away.pem`, err: ErrLeadsOut},
		"a host directory that is a link": {source: `C:\moved\trace.exe`, want: `C:\tools\trace.exe`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := windowsPolicy(windowsNode())
			withDirs(`C:\tools`, `C:\moved`)(&p)
			mounts, err := p.Mounts([]Request{{Source: test.source}}, devices(), nil)
			if !errors.Is(err, test.err) {
				t.Fatalf("%v, error %v, want %v", mounts, err, test.err)
			}
			if test.err == nil && (len(mounts) != 1 || mounts[0].Source != test.want) {
				t.Errorf("%v, want the file that it leads to, %s", mounts, test.want)
			}
		})
	}
}

func TestLinuxContainers(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	if out, err := exec.Command("sh", "-c", `cd "$0" && mkdir -p opt/gpu/sub opt/gpux secret && touch opt/gpu/lib.so opt/gpux/no.so secret/key && ln -s ../../secret/key opt/gpu/away.so`, root).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for name, test := range map[string]struct {
		request Request
		into    []string
		want    string
		err     error
	}{
		"of a host directory":     {request: Request{Source: "/opt/gpu/lib.so"}, want: "/opt/gpu/lib.so > /usr/lib/wsl/lib/lib.so"},
		"under another name":      {request: Request{Source: "/opt/gpu/lib.so", Destination: "a.so"}, want: "/opt/gpu/lib.so > /usr/lib/wsl/lib/a.so"},
		"to a directory":          {request: Request{Source: "/opt/gpu/lib.so", Destination: "/srv/x/a.so"}, into: []string{"/srv"}, want: "/opt/gpu/lib.so > /srv/x/a.so"},
		"relative":                {request: Request{Source: "lib.so"}, err: ErrNoStore},
		"elsewhere":               {request: Request{Source: "/secret/key"}, err: ErrSource},
		"begins alike":            {request: Request{Source: "/opt/gpux/no.so"}, err: ErrSource},
		"dots":                    {request: Request{Source: "/opt/gpu/../../secret/key"}, err: ErrDots},
		"two slashes":             {request: Request{Source: "//opt/gpu/lib.so"}, err: ErrEmptyElement},
		"backslash":               {request: Request{Source: `/opt/gpu\lib.so`}, err: ErrCharacter},
		"a link away":             {request: Request{Source: "/opt/gpu/away.so"}, err: ErrLeadsOut},
		"a directory":             {request: Request{Source: "/opt/gpu/sub"}, err: ErrNotFile},
		"missing":                 {request: Request{Source: "/opt/gpu/no.so"}, err: ErrMissing},
		"destination":             {request: Request{Source: "/opt/gpu/lib.so", Destination: "/etc/passwd"}, err: ErrDestination},
		"destination of dots":     {request: Request{Source: "/opt/gpu/lib.so", Destination: "../a"}, err: ErrDots},
		"a directory of Windows'": {request: Request{Source: "/opt/gpu/lib.so", Directory: "System32"}, err: ErrDirectory},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := Policy{OS: ocispec.Linux, Files: hostfiles.Root(root), ExtraMounts: policy.ExtraMounts{
				Sources: policy.MountHostDirectories, HostDirectories: []string{"/opt/gpu"}, Destinations: test.into, Max: 1,
			}}
			mounts, err := p.Mounts([]Request{test.request}, devices(), nil)
			if !errors.Is(err, test.err) {
				t.Fatalf("%v, error %v, want %v", mounts, err, test.err)
			}
			if test.err == nil && (len(mounts) != 1 || mounts[0].Source+" > "+mounts[0].Destination != test.want || !slices.Contains(mounts[0].Options, "ro")) {
				t.Errorf("%+v, want %s", mounts, test.want)
			}
		})
	}
}

// A pod's author writes what is parsed here. Whatever it is: what is granted lies,
// resolved, in a driver's directory, and lands in a directory of the policy, read-only,
// on nothing of Windows' own.
func FuzzMounts(f *testing.F) {
	for _, seed := range []string{
		`[nvidia-smi.exe]`, `[{source: x86\tool.exe, destination: tool.exe, directory: SysWOW64}]`, `['..\secret.inf_1\secret.txt']`,
		`['\\?\C:\secret\key.pem']`, `['C:\secret\key.pem']`, `[{source: amd.exe, destination: 'C:\Windows\System32\kernel32.dll'}]`,
		`[{source: amd.exe, destination: 'kernel32.dll::$DATA'}]`, `['NVCUDA~1.DLL']`, `[&a amd.exe, *a]`, `[NUL, 'a ', 'b.']`, `{}`, "[", "\x00",
		"- a # b\n- source: c\n  directory: SysWOW64", "- {", "'", "\"\\u", `[{source: 'x86/../amd.exe'}]`, `[{source: amd.exe, destination: 'KERNEL32.DLL'}]`,
	} {
		f.Add(seed)
	}
	root := windowsNode()
	allowed := []string{ocispec.System32, ocispec.SysWOW64}
	f.Fuzz(func(t *testing.T, text string) {
		requests, err := Parse("list", text)
		if err != nil {
			if !errors.Is(err, ErrMalformed) || strings.ContainsAny(err.Error(), "\n\r") {
				t.Fatalf("%q", err)
			}
			return
		}
		mounts, err := windowsPolicy(root).Mounts(requests, devices(), nil)
		if err != nil {
			if mounts != nil || strings.ContainsAny(err.Error(), "\n\r") {
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
				winpath.Equal(m.Destination, ocispec.System32+`\kernel32.dll`) || strings.ContainsAny(m.Destination[2:], `:*?"<>|`) {
				t.Fatalf("%+v", m)
			}
		}
	})
}
