package containerdconfig

import (
	"bytes"
	"errors"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"directx-nri/internal/allocation"
)

const (
	linuxShim   = "/usr/local/bin/containerd-shim-directx-v1"
	windowsShim = `C:\Program Files\containerd\containerd-shim-directx-v1.exe`
)

func settings(file string) Settings {
	if strings.Contains(file, "windows") {
		return Settings{Node: Node{OS: "windows"}, Shim: windowsShim}
	}
	return Settings{Node: Node{OS: "linux"}, Shim: linuxShim, NRI: true}
}

func configure(t testing.TB, text string, s Settings) Result {
	t.Helper()
	r, err := Configure([]byte(text), s)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func handler(t testing.TB, text []byte, node Node, name string) Handler {
	t.Helper()
	f, err := Read(text, node)
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range f.Handlers {
		if h.Name == name {
			return h
		}
	}
	t.Fatalf("no handler %s among %s", name, names(f.Handlers))
	return Handler{}
}

// TestFilesOfRealNodes holds for each file what must hold for all.
func TestFilesOfRealNodes(t *testing.T) {
	t.Parallel()
	ours := map[string][]string{
		"default-1.7.35-linux.toml":    {"runc"},
		"default-2.4.2-linux.toml":     {"runc"},
		"default-1.7.35-windows.toml":  {"runhcs-wcow-process"},
		"default-2.4.2-windows.toml":   {"runhcs-wcow-process"},
		"aks-windows.toml":             {"default", "runhcs-wcow-process"},
		"aks-windows-containerd2.toml": {"default_runtime", "runhcs-wcow-process"},
		"eks-windows.toml":             {"runhcs-wcow-process"},
		"kubeadm-windows.toml":         {"runhcs-wcow-process"},
	}
	files, err := filepath.Glob("testdata/*.toml")
	if err != nil || len(files) != len(ours) {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		name := filepath.Base(file)
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for variant, s := range map[string]Settings{
				"default":     settings(name),
				"own handler": func() Settings { s := settings(name); s.AddHandler = "directx"; return s }(),
			} {
				want := ours[name]
				if s.AddHandler != "" {
					want = []string{"directx"}
				}
				r := configure(t, string(text), s)
				if diff := cmp.Diff(want, r.Handlers); diff != "" {
					t.Errorf("%s: handlers (-want +got):\n%s", variant, diff)
				}
				checkResult(t, text, r, s)
				before, err := Read(text, s.Node)
				if err != nil {
					t.Fatal(err)
				}
				for _, h := range before.Handlers {
					got := handler(t, r.Text, s.Node, h.Name)
					if got.RuntimeType != h.RuntimeType || got.SandboxIsolation != h.SandboxIsolation {
						t.Errorf("%s: %s was %+v and is %+v", variant, h.Name, h, got)
					}
				}
			}
		})
	}
}

// checkResult holds what every result must: only lines were added or changed,
// a second time changes nothing, and undoing gives the text back.
func checkResult(t testing.TB, before []byte, r Result, s Settings) {
	t.Helper()
	f, err := Read(r.Text, s.Node)
	if err != nil {
		t.Fatal(err)
	}
	if s.NRI && !f.NRI {
		t.Error("NRI is off")
	}
	for _, name := range r.Handlers {
		h := handler(t, r.Text, s.Node, name)
		if h.RuntimePath != s.Shim || !h.PassesAnnotations() {
			t.Errorf("handler %s is not routed: %+v", name, h)
		}
	}
	again, err := Configure(r.Text, s)
	if err != nil || !bytes.Equal(again.Text, r.Text) || len(again.Edits) > 0 {
		t.Errorf("a second time changes: %v\n%s", err, cmp.Diff(string(r.Text), string(again.Text)))
	}
	undone, notes, err := Undo(r.Text, r.Edits)
	if err != nil || len(notes) > 0 || !bytes.Equal(bytes.TrimRight(undone, "\r\n"), bytes.TrimRight(before, "\r\n")) {
		t.Errorf("undone: %v %q (-want +got):\n%s", err, notes, cmp.Diff(string(before), string(undone)))
	}
}

func TestConfigureWrites(t *testing.T) {
	t.Parallel()
	linux, windows := settings("linux"), settings("windows")
	onlyNRI := Settings{Node: Node{OS: "linux"}, NRI: true}
	const p = `'directx.microsoft.com/*'`
	for name, test := range map[string]struct {
		text string
		s    Settings
		want string
	}{
		"a missing file on Linux": {"", linux, `version = 2

[plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.runc]
  runtime_type = 'io.containerd.runc.v2'
  runtime_path = '` + linuxShim + `'
  pod_annotations = [` + p + `]
  container_annotations = [` + p + `]

[plugins.'io.containerd.nri.v1.nri']
  disable = false
`},
		"a missing file on Windows keeps every built-in handler": {"", windows, `version = 2

[plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.runhcs-wcow-hypervisor]
  container_annotations = ['io.microsoft.container.*']
  options = {SandboxIsolation = 1, ScaleCpuLimitsToSandbox = true, ScrubLogs = true}
  pod_annotations = ['io.microsoft.virtualmachine.*']
  runtime_type = 'io.containerd.runhcs.v1'

[plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.runhcs-wcow-process]
  container_annotations = ['io.microsoft.container.*', ` + p + `]
  options = {ScrubLogs = true}
  runtime_type = 'io.containerd.runhcs.v1'
  runtime_path = '` + windowsShim + `'
  pod_annotations = [` + p + `]
`},
		"version 3 inherits what is built in, lists included": {"version = 3\n", windows, `version = 3

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runhcs-wcow-process]
  runtime_type = 'io.containerd.runhcs.v1'
  runtime_path = '` + windowsShim + `'
  pod_annotations = [` + p + `]
  container_annotations = ['io.microsoft.container.*', ` + p + `]
`},
		"only NRI":                   {"version = 2\n", onlyNRI, "version = 2\n\n[plugins.'io.containerd.nri.v1.nri']\n  disable = false\n"},
		"NRI in a file of version 1": {"root = \"/x\"\n", onlyNRI, "root = \"/x\"\n\n[plugins.nri]\n  disable = false\n"},
		"NRI turned off by hand": {
			"version = 3\n[plugins.'io.containerd.nri.v1.nri']\n  disable = true # why\n", onlyNRI,
			"version = 3\n[plugins.'io.containerd.nri.v1.nri']\n  disable = false # why\n",
		},
		"NRI is on in containerd 2": {"version = 3\n", onlyNRI, "version = 3\n"},
		"no end of line at the end": {"version = 2", onlyNRI, "version = 2\n\n[plugins.'io.containerd.nri.v1.nri']\n  disable = false"},
		"lists keep what they have": {
			"version = 3\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]\nruntime_path = ''\npod_annotations = [\n  'a', # one\n  \"b\",\n]\ncontainer_annotations = []\n", linux,
			"version = 3\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]\nruntime_path = '" + linuxShim + "'\npod_annotations = [\n  'a', # one\n  \"b\", " + p + ",\n]\ncontainer_annotations = [" + p + "]\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := configure(t, test.text, test.s)
			if diff := cmp.Diff(test.want, string(r.Text)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			checkResult(t, []byte(test.text), r, test.s)
			for form, change := range map[string]func(string) string{
				"CRLF": func(s string) string { return strings.ReplaceAll(s, "\n", "\r\n") },
				"BOM":  func(s string) string { return bom + s },
			} {
				if !strings.Contains(test.text, "\n") || form == "BOM" && strings.Contains(test.text, "version = 3") {
					continue
				}
				r := configure(t, change(test.text), test.s)
				if diff := cmp.Diff(change(test.want), string(r.Text)); diff != "" {
					t.Errorf("%s (-want +got):\n%s", form, diff)
				}
				checkResult(t, []byte(change(test.text)), r, test.s)
			}
		})
	}
}

func TestConfigureRefuses(t *testing.T) {
	t.Parallel()
	chosen := settings("linux")
	chosen.Handlers = []string{"kata"}
	for name, test := range map[string]struct {
		text string
		s    Settings
		want string
	}{
		"not TOML":               {"version = 2\n[plugins\n", settings("linux"), "2:"},
		"a table twice":          {"version = 2\n[a]\n[a]\n", settings("linux"), "3:"},
		"too new":                {"version = 5\n", settings("linux"), "version 5 is newer"},
		"version is a string":    {"version = \"2\"\n", settings("linux"), "unsupported version"},
		"BOM in version 3":       {bom + "version = 3\n", settings("linux"), "byte order mark"},
		"no such handler":        {"version = 2\n", chosen, `no runtime handler "kata" among runc`},
		"nothing to choose":      {"version = 2\n[plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.kata]\nruntime_type = 'io.containerd.kata.v2'\n", settings("linux"), `no runtime handler can have GPUs: runtime handler kata has runtime_type "io.containerd.kata.v2"`},
		"a kernel of its own":    {"version = 3\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.kata]\nruntime_type = 'io.containerd.runc.v2'\noptions.BinaryName = '/opt/kata-runtime'\n", chosen, "runs /opt/kata-runtime, whose containers have a kernel of their own"},
		"a sandboxer of its own": {"version = 3\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.kata]\nruntime_type = 'io.containerd.runc.v2'\nsandboxer = 'shim'\n", chosen, "runtime handler kata has the sandboxer shim, not podsandbox"},
		"CRI is disabled":        {"disabled_plugins = ['cri']\n", settings("linux"), "disabled_plugins has cri"},
		"NRI is disabled":        {"version = 2\ndisabled_plugins = ['io.containerd.nri.v1.nri']\n", settings("linux"), "disabled_plugins has io.containerd.nri.v1.nri"},
		"handler is no table":    {"version = 3\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes]\nrunc = 1\n", settings("linux"), "is not a table"},
		"list of tables":         {"version = 3\n[[plugins]]\n", settings("linux"), "list of tables"},
		"inline tables":          {"version = 2\nplugins = { 'io.containerd.grpc.v1.cri' = { containerd.runtimes.runc = { runtime_type = 'io.containerd.runc.v2' } } }\n", settings("linux"), "line 2: plugins is not written as a table"},
		"dotted keys":            {"version = 2\n[plugins]\n'io.containerd.grpc.v1.cri'.containerd.runtimes.runc.runtime_type = 'io.containerd.runc.v2'\n", settings("linux"), "line 3: plugins.'io.containerd.grpc.v1.cri' is not written as a table"},
		"list of numbers":        {"version = 3\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]\npod_annotations = [1]\n", settings("linux"), "list of strings"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := Configure([]byte(test.text), test.s)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want one that says %q", err, test.want)
			}
		})
	}
	var syntax *SyntaxError
	if _, err := Configure([]byte("version = 2\n  x = = 1\n"), settings("linux")); !errors.As(err, &syntax) || syntax.Line != 2 || syntax.Column != 7 {
		t.Errorf("%v: want line 2, column 7", err)
	}
}

// TestUndoKeepsWhatOthersChanged changes the configured text before it is
// undone.
func TestUndoKeepsWhatOthersChanged(t *testing.T) {
	t.Parallel()
	const before = `version = 2
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
  runtime_path = "/opt/shim"
  container_annotations = ["a"]
`
	r := configure(t, before, settings("linux"))
	for name, test := range map[string]struct {
		from, to string // what others replace
		undone   func(string) string
		note     string
	}{
		"a table before": {"version = 2\n", "version = 2\n[debug]\n  level = \"debug\"\n", func(s string) string {
			return strings.Replace(s, "version = 2\n", "version = 2\n[debug]\n  level = \"debug\"\n", 1)
		}, ""},
		"text at the end":      {"disable = false\n", "disable = false\n# end\n[x]\n", func(s string) string { return s + "# end\n[x]\n" }, ""},
		"a longer list":        {`["a", 'directx.microsoft.com/*']`, `["a", 'directx.microsoft.com/*', "b"]`, func(s string) string { return strings.Replace(s, `["a"]`, `["a", "b"]`, 1) }, ""},
		"an item less":         {`["a", 'directx.microsoft.com/*']`, `['directx.microsoft.com/*']`, func(s string) string { return strings.Replace(s, `["a"]`, `[]`, 1) }, ""},
		"another runtime_path": {linuxShim, "/opt/other", func(s string) string { return strings.Replace(s, `"/opt/shim"`, "'/opt/other'", 1) }, "was changed since"},
		"a key in our table":   {"disable = false\n", "disable = false\n  socket_path = \"/x\"\n", func(s string) string { return s + "\n[plugins.'io.containerd.nri.v1.nri']\n  socket_path = \"/x\"\n" }, "has further keys"},
		"our table gone":       {"\n[plugins.'io.containerd.nri.v1.nri']\n  disable = false\n", "", func(s string) string { return s }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			changed := strings.Replace(string(r.Text), test.from, test.to, 1)
			if changed == string(r.Text) {
				t.Fatalf("nothing to change in\n%s", r.Text)
			}
			undone, notes, err := Undo([]byte(changed), r.Edits)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.undone(before), string(undone)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if (test.note == "") != (len(notes) == 0) || !strings.Contains(strings.Join(notes, "\n"), test.note) {
				t.Errorf("notes %q, want %q", notes, test.note)
			}
			again, _, err := Undo(undone, r.Edits)
			if err != nil || !bytes.Equal(again, undone) {
				t.Errorf("undone twice: %v\n%s", err, again)
			}
		})
	}
}

func TestRemoveWithoutRecord(t *testing.T) {
	t.Parallel()
	const before = `version = 2
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
  container_annotations = ["a"]
`
	s := settings("linux")
	s.NRI = false
	got, notes, err := Remove(configure(t, before, s).Text, s.Node)
	if err != nil || len(notes) != 1 {
		t.Fatal(notes, err)
	}
	if diff := cmp.Diff(before, string(got)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	again, notes, err := Remove(got, s.Node)
	if err != nil || len(notes) != 0 || string(again) != before {
		t.Errorf("again: %q %v\n%s", notes, err, again)
	}
}

func TestWarnings(t *testing.T) {
	t.Parallel()
	const table = "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes."
	for text, want := range map[string]string{
		table + "runc]\nruntime_path = '/opt/other'\n":                                       "/opt/other",
		table + "other]\nruntime_type = 'io.containerd.runc.v2'\nsandboxer = 'shim'\n":       "runtime handler other has the sandboxer shim, not podsandbox: it is left unchanged",
		table + "other]\nruntime_type = 'io.containerd.runc.v2'\nsandbox_mode = 'shim'\n":    "the sandboxer shim",
		table + "other]\nruntime_type = 'io.containerd.runc.v2'\nsandboxer = 'podsandbox'\n": notForPods,
	} {
		r := configure(t, text, settings("linux"))
		if len(r.Warnings) == 0 || !strings.Contains(r.Warnings[0], want) {
			t.Errorf("%s: warnings %q, want %q", text, r.Warnings, want)
		}
		if ours := handler(t, r.Text, Node{OS: "linux"}, r.Handlers[0]).Ours(); !ours || strings.Contains(want, "unchanged") && len(r.Handlers) != 1 {
			t.Errorf("%s: handlers %q", text, r.Handlers)
		}
	}
}

func TestContainerd2OnLinuxIsWarnedAbout(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		text string
		node Node
		want bool
	}{
		"1.x":          {"version = 2\n", Node{OS: "linux", Major: 1}, false},
		"2.x":          {"version = 2\n", Node{OS: "linux", Major: 2}, true},
		"2.x, by file": {"version = 3\n", Node{OS: "linux"}, true},
		"Windows":      {"version = 3\n", Node{OS: "windows", Major: 2}, false},
	} {
		s := settings(test.node.OS)
		s.Node = test.node
		r := configure(t, test.text, s)
		if got := slices.Contains(r.Warnings, notForPods); got != test.want {
			t.Errorf("%s: warnings %q", name, r.Warnings)
		}
	}
}

func TestOverrides(t *testing.T) {
	t.Parallel()
	linux, two := Node{OS: "linux"}, Node{OS: "linux", Major: 2}
	for name, test := range map[string]struct {
		text    string
		version int
		node    Node
		want    []string
	}{
		"nothing of ours":        {"version = 2\n[plugins.x]\n", 2, linux, nil},
		"1.x replaces a section": {"version = 2\n[plugins.'io.containerd.grpc.v1.cri'.registry]\n", 2, linux, []string{"plugins.'io.containerd.grpc.v1.cri'"}},
		"2.x merges it":          {"version = 2\n[plugins.'io.containerd.grpc.v1.cri'.registry]\n", 2, two, nil},
		"handlers":               {"version = 3\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.x]\n", 3, linux, []string{"plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes"}},
		"NRI":                    {"version = 3\n[plugins.'io.containerd.nri.v1.nri']\n", 3, linux, []string{"plugins.'io.containerd.nri.v1.nri'"}},
	} {
		got, err := Overrides([]byte(test.text), test.version, test.node)
		if diff := cmp.Diff(test.want, got); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got):\n%s", name, err, diff)
		}
	}
}

func TestPatternsAsContainerdMatchesThem(t *testing.T) {
	t.Parallel()
	for _, resource := range []string{"directx.microsoft.com/display", "example.com/gpu.v2"} {
		if ok, err := path.Match(AnnotationPattern, allocation.AnnotationKey(resource)); !ok || err != nil {
			t.Errorf("%s does not match %s: %v", AnnotationPattern, allocation.AnnotationKey(resource), err)
		}
	}
	for pattern, want := range map[string]bool{"directx.microsoft.com/*": true, "*": false, "*/*": true, "directx.microsoft.com/allocation.display": false, "io.*": false, "[": false} {
		if got := passes([]string{pattern}); got != want {
			t.Errorf("%q: %t", pattern, got)
		}
	}
}
