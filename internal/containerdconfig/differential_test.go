package containerdconfig

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/pelletier/go-toml/v2"

	"github.com/directx-nri/directx-nri/internal/testutil"
)

// leaves returns the values of a decoded file that are not tables, by path.
func leaves(t testing.TB, text []byte) map[string]any {
	t.Helper()
	var root map[string]any
	if err := toml.Unmarshal([]byte(strings.TrimPrefix(string(text), bom)), &root); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	found := map[string]any{}
	var walk func(path string, value any)
	walk = func(path string, value any) {
		table, ok := value.(map[string]any)
		if !ok {
			found[path] = value
			return
		}
		for key, below := range table {
			walk(path+"\x00"+key, below)
		}
	}
	walk("", root)
	return found
}

// mayEdit reports whether Configure may add a value, and whether it may change one.
func mayEdit(path string) (add, change bool) {
	keys := strings.Split(path, "\x00")[1:]
	key := keys[len(keys)-1]
	switch {
	case path == "\x00version":
		return true, false
	case keys[0] != "plugins" || len(keys) < 3:
		return false, false
	case keys[1] == "nri" || keys[1] == "io.containerd.nri.v1.nri":
		return key == "disable", key == "disable"
	case keys[2] != "containerd" || len(keys) < 5:
		return false, false
	}
	handler := keys[4:] // the path in a handler's table, which has a name below runtimes
	switch keys[3] {
	case "runtimes":
		handler = keys[5:]
	case "default_runtime", "untrusted_workload_runtime": // containerd 1.x
	default:
		return false, false
	}
	return len(handler) > 0, len(handler) == 1 && slices.Contains([]string{"runtime_path", "pod_annotations", "container_annotations"}, key)
}

// FuzzConfigure checks each text that Configure accepts with checkResult, and compares what go-toml
// decodes before and after: nothing but our values differs, and lists keep what they had.
func FuzzConfigure(f *testing.F) {
	files, err := filepath.Glob("testdata/*.toml")
	testutil.NoError(f, err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		testutil.NoError(f, err)
		if len(text) < 3000 {
			f.Add(string(text), strings.Contains(file, "windows"), "directx")
		}
	}
	for _, text := range []string{
		"", "\n", "# c", "version = 2", "version = 3\r\n", bom, "version=2\n[[plugins]]",
		"version = 4\nplugins.a.b = 1 # c\n[x]", "version = 3\na = [{b = 1}]\n[[x]]\ny.z = 1979-05-27\n", "plugins = {}", "plugins.'io.containerd.nri.v1.nri'.disable = true",
		"version = 2\n[plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes]\nrunc = {runtime_type='io.containerd.runc.v2',pod_annotations=['a',]}",
		"version = 3\n[plugins.\"io.containerd.cri.v1.runtime\".containerd.runtimes.runc]# x\ncontainer_annotations = [ # y\n\n'''a''' , ]",
	} {
		f.Add(text, false, "directx")
		f.Add(text, true, "")
	}
	f.Fuzz(func(t *testing.T, text string, windows bool, add string) {
		s := settings("linux")
		if windows {
			s = settings("windows")
		}
		s.AddHandler = strings.ToValidUTF8(add, "")
		r, err := Configure([]byte(text), s)
		if err != nil {
			return
		}
		checkResult(t, []byte(text), r, s)
		second := s
		second.AddHandler = "second"
		if changed, err := Configure(r.Text, second); err == nil {
			checkResult(t, r.Text, changed, second)
			undone, notes, err := Undo(changed.Text, append(r.Edits, changed.Edits...))
			if err != nil || len(notes) > 0 || string(undone) != text {
				t.Errorf("both undone: %v %q\n%q", err, notes, undone)
			}
		}
		if _, _, err := RemoveShim(r.Text, s.Release); err != nil && !strings.Contains(err.Error(), "manually") {
			t.Error(err)
		}
		before, after := leaves(t, []byte(text)), leaves(t, r.Text)
		for path, value := range before {
			_, change := mayEdit(path)
			list, isList := value.([]any)
			now, kept := after[path]
			nowList, _ := now.([]any)
			switch {
			case !kept:
				t.Errorf("%q is lost", path)
			case reflect.DeepEqual(value, now):
			case !change:
				t.Errorf("%q was %v and is %v", path, value, now)
			case isList && (len(nowList) < len(list) || !reflect.DeepEqual(list, nowList[len(nowList)-len(list):])):
				t.Errorf("%q had %v and has %v", path, list, nowList)
			}
		}
		for path, value := range after {
			if _, had := before[path]; had {
				continue
			}
			if add, _ := mayEdit(path); !add {
				t.Errorf("%q = %v is new", path, value)
			}
		}
	})
}
