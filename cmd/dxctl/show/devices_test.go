package show

import (
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// A configuration can name the inventory.
func TestDevicesByConfiguration(t *testing.T) {
	t.Parallel()
	inventory, _, _ := newTestNode(t)
	out, err := ask(t, "devices", "--config", configFile(t, "inventory: "+inventory+"\nreplicas: 3\n"), "-o", "json")
	if err != nil || !strings.Contains(out, `"PCI\\VEN_10DE&DEV_1EB8\\1"`) || !strings.Contains(out, `"replicas": 3`) {
		t.Errorf("%v: %s", err, out)
	}
}

func TestDevicesRefusals(t *testing.T) {
	t.Parallel()
	none := filepath.Join(t.TempDir(), "none")
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"no such inventory": {[]string{"--inventory", none}, none},
		"one is watched":    {[]string{"--watch", "0"}, "--watch excludes the name of a GPU"},
		"two at once":       {[]string{"0", "1"}, "got 2 arguments, want 'dxctl devices ["},
	} {
		if out, err := ask(t, append([]string{"devices"}, test.args...)...); err == nil || !strings.Contains(err.Error(), test.want) || out != "" {
			t.Errorf("%s: %v %s", name, err, out)
		}
	}
	if runtime.GOOS == "windows" {
		return
	}
	if out, err := ask(t, "devices"); err == nil || !strings.Contains(err.Error(), "--inventory") {
		t.Errorf("without an inventory: %v %s", err, out)
	}
}
