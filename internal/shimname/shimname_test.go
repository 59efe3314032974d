package shimname

import "testing"

func TestIs(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]bool{
		"": false, "/usr/local/bin/" + Name: true, `C:\Program Files\containerd\Containerd-Shim-DirectX-v1.EXE`: true,
		Name: true, "/usr/local/bin/containerd-shim-runc-v2": false, "/" + Name + "/x": false,
	} {
		if got := Is(path); got != want {
			t.Errorf("Is(%q) = %t", path, got)
		}
	}
	if File("windows") != Name+".exe" || File("linux") != Name {
		t.Error(File("windows"), File("linux"))
	}
}
