package main

import (
	"archive/zip"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"directx-nri/cmd/dxctl/doctor"
	"directx-nri/cmd/dxctl/terminal"
	"directx-nri/discovery"
	"directx-nri/internal/capabilities"
	"directx-nri/internal/config"
	"directx-nri/internal/containerdconfig"
	"directx-nri/internal/win32"
)

// brokenNode is a node on which two things are wrong, and one could not be looked
// at.
func brokenNode() doctor.Facts {
	const shim = "/usr/local/bin/containerd-shim-directx-v1"
	patterns := []string{"directx.microsoft.com/*"}
	return doctor.Facts{
		OS: "linux", Version: "1.0",
		GPUs: doctor.GPUs{Inventory: "/etc/directx-nri/inventory.yaml", List: []doctor.GPU{{
			Device: discovery.Device{
				InstanceID: "GPU-0", Description: "NVIDIA \x1b[31mTesla T4", SupportsDisplay: true, Health: discovery.Health{Reason: "it overheated"},
				DeviceNodes: []discovery.DeviceNode{{Path: "/dev/dxg"}},
			},
		}}},
		Containerd: doctor.Containerd{
			ConfigPath: "/etc/containerd/config.toml", Socket: "/run/containerd/containerd.sock", Version: "v1.7.35",
			File: containerdconfig.File{NRI: true, Handlers: []containerdconfig.Handler{
				{Name: "runc", RuntimeType: "io.containerd.runc.v2", RuntimePath: shim, PodAnnotations: patterns, ContainerAnnotations: patterns},
			}},
			Loaded: []containerdconfig.Handler{{Name: "runc", RuntimePath: shim}},
		},
		Shims: []doctor.Shim{{Path: shim, Handlers: []string{"runc"}, Version: "0.9"}},
		NRI:   doctor.NRI{PluginSocket: "/run/directx-nri/nri.sock", PluginErr: nil, Started: true},
		Kubelet: doctor.Kubelet{
			Folder:      "/var/lib/kubelet/device-plugins",
			Allocatable: map[string][]string{},
		},
		Records: doctor.Records{Folder: "/var/lib/directx-nri/allocations", Err: fs.ErrPermission},
	}
}

func TestDoctorOutput(t *testing.T) {
	t.Parallel()
	sound := brokenNode()
	sound.GPUs.List[0].Health, sound.Shims[0].Version, sound.Records.Err = discovery.Health{}, "1.0", nil
	sound.Kubelet.Allocatable["directx.microsoft.com/display"] = []string{"GPU-0::0"}
	unknown := sound
	unknown.Records.Err = fs.ErrPermission
	for name, test := range map[string]struct {
		facts doctor.Facts
		want  doctor.Result
	}{
		"doctor-broken":  {brokenNode(), doctor.Findings},
		"doctor-sound":   {sound, doctor.Sound},
		"doctor-unknown": {unknown, doctor.NotKnown},
	} {
		verdict := doctor.Examine(test.facts)
		var text, asJSON bytes.Buffer
		if err := errors.Join(verdict.Print(&text, terminal.Terminal{}), verdict.Report(test.facts).PrintJSON(&asJSON)); err != nil {
			t.Fatal(err)
		}
		if verdict.Result() != test.want {
			t.Errorf("%s: %s", name, verdict.Result())
		}
		golden(t, name, text.String())
		golden(t, name+"-json", asJSON.String())
	}
	var text bytes.Buffer
	if err := doctor.Examine(brokenNode()).Print(&text, terminal.Terminal{Color: true}); err != nil || !strings.Contains(text.String(), "\x1b[31mproblem\x1b[0m") || strings.Contains(text.String(), "NVIDIA \x1b") {
		t.Errorf("with colours: %v\n%q", err, text.String())
	}
}

func TestDoctorRefusals(t *testing.T) {
	t.Parallel()
	there := filepath.Join(t.TempDir(), "there.zip")
	if err := os.WriteFile(there, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"no such form":         {[]string{"-o", "yaml"}, `--output "yaml" is neither text nor json`},
		"no such role":         {[]string{"--role", "x"}, "none of kubernetes, standalone, auto"},
		"no such server":       {[]string{"--served-by", "x"}, "none of nri, shim, kubelet, auto"},
		"no time":              {[]string{"--timeout", "0s"}, "too short"},
		"nothing to replace":   {[]string{"--force"}, "no use without --support-bundle"},
		"a folder":             {[]string{"--force", "--support-bundle", filepath.Dir(there)}, "no ordinary file: name another"},
		"a file that is there": {[]string{"--support-bundle", there}, "say --force to replace it"},
	} {
		if out, err := ask(t, append([]string{"doctor"}, test.args...)...); err == nil || !strings.Contains(err.Error(), test.want) || out != "" {
			t.Errorf("%s: %v %s", name, err, out)
		}
	}
	if text, err := os.ReadFile(there); err != nil || string(text) != "mine" {
		t.Errorf("the file is %q, %v", text, err)
	}
}

// emptyNode returns the flags of a node on which there is nothing but what is in
// folder.
func emptyNode(folder string) []string {
	path := func(name string) string { return filepath.Join(folder, name) }
	socket := path("s")
	if runtime.GOOS == "windows" {
		socket = `\\.\pipe\dxctl-doctor-nobody`
	}
	return []string{
		"--config", path("config.toml"), "--cri-socket", socket, "--shim-config", path("config.yaml"), "--runtime-dir", path("run"), "--nri-socket", path("nri.sock"),
		"--kubelet-dir", path("kubelet"), "--pod-resources-socket", path("pr.sock"), "--containerd-state", path("containerd"), "--shim", path("shim"), "--timeout", "30s",
	}
}

func TestDoctorOnAnEmptyNode(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	out, err := ask(t, append([]string{"doctor", "--state-dir", filepath.Join(folder, "state")}, emptyNode(folder)...)...)
	if err == nil || !strings.Contains(out, "nothing of directx-nri is set up") || !strings.Contains(out, "containerd cannot be reached") {
		t.Errorf("%v\n%s", err, out)
	}
	entries, readErr := os.ReadDir(folder)
	if readErr != nil || len(entries) > 0 {
		t.Errorf("it left %v, %v", entries, readErr)
	}
}

// TestSupportBundleHasNoSecret puts a secret into everything that is read, good
// and broken, and looks for it in what is packed.
func TestSupportBundleHasNoSecret(t *testing.T) {
	t.Setenv("DIRECTX_NRI_SECRET", "HUNTER-variable")
	const token = "0123456789abcdef0123456789abcdef"
	good := map[string]string{
		"config.toml": "version = 2\n# HUNTER-comment\n[plugins.\"io.containerd.grpc.v1.cri\".registry.configs.\"r.example.com\".auth]\n" +
			"  username = \"HUNTER-user\"\n  password = \"HUNTER-password\"\n  identitytoken = \"HUNTER-token\"\n" +
			"[plugins.\"io.containerd.grpc.v1.cri\".registry.mirrors.\"docker.io\"]\n  endpoint = [\"https://u:HUNTER-url@m.example.com\"]\n" +
			"[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc]\n  runtime_type = \"io.containerd.runc.v2\"\n  [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc.options]\n    Root = \"HUNTER-option\"\n",
		"config.yaml": "# HUNTER-comment\napiVersion: directx.microsoft.com/v1alpha1\nkind: Configuration # HUNTER-line\nstateDir: STATE\ninventory: INVENTORY\n",
		"gpus.yaml": "# HUNTER-head\napiVersion: directx.microsoft.com/v1alpha1\nkind: Inventory\ndevices:\n# HUNTER-device\n- instanceID: GPU # HUNTER-line\n" +
			"  description: 'api_key=HUNTER-key https://u:HUNTER-url@example.com/x?sig=HUNTER-sig Bearer HUNTER-bearer'\n  display: true\n  locationPath: PCIROOT(0)#PCI(1B00)\n",
		"state/shim.log": "level=error msg=\"password=\\\"HUNTER-quoted words\\\" secret: 'HUNTER-single' eyJhbGciOi.HUNTER-jwt.HUNTER\" token " + token + "\n" +
			"-----BEGIN RSA PRIVATE KEY-----\nHUNTER-key\n-----END RSA PRIVATE KEY-----\nlevel=info msg=well container=abc\n",
	}
	broken := map[string]string{
		"config.toml": "version = 2\npassword = HUNTER-bare\n",
		"config.yaml": "apiVersion: directx.microsoft.com/v1alpha1\nkind: Configuration\nshim: HUNTER-scalar\nHUNTER-key: HUNTER-value\n",
		"gpus.yaml":   "apiVersion: directx.microsoft.com/v1alpha1\nkind: Inventory\nHUNTER-key: HUNTER-value\n",
	}
	for name, changes := range map[string]map[string]string{"good": {}, "broken containerd": {"config.toml": broken["config.toml"]}, "broken config": {"config.yaml": broken["config.yaml"]}, "broken inventory": {"gpus.yaml": broken["gpus.yaml"]}} {
		t.Run(name, func(t *testing.T) {
			folder := t.TempDir()
			if err := errors.Join(os.Chmod(folder, 0o700), os.Mkdir(filepath.Join(folder, "state"), 0o700)); err != nil {
				t.Fatal(err)
			}
			for file, text := range good {
				if changed, ok := changes[file]; ok {
					text = changed
				}
				text = strings.NewReplacer("STATE", filepath.Join(folder, "state"), "INVENTORY", filepath.Join(folder, "gpus.yaml")).Replace(text)
				if err := os.WriteFile(filepath.Join(folder, file), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			bundle := filepath.Join(folder, "bundle.zip")
			out, err := ask(t, append([]string{"doctor", "--support-bundle", bundle}, emptyNode(folder)...)...)
			if err == nil || !strings.Contains(out, "bundle.zip is written") {
				t.Fatalf("%v\n%s", err, out)
			}
			files := unzip(t, bundle)
			for file, text := range files {
				if strings.Contains(text, "HUNTER") || strings.Contains(text, token) {
					t.Errorf("%s has a secret:\n%s", file, text)
				}
			}
			if !strings.Contains(files["environment.txt"], "DIRECTX_NRI_SECRET") || !strings.Contains(files["doctor.json"], `"findings"`) {
				t.Errorf("what is to be there is not: %q", slices.Sorted(maps.Keys(files)))
			}
			if name == "good" && (!strings.Contains(files["inventory.yaml"], "PCIROOT(0)#PCI(1B00)") || !strings.Contains(files["shim.log"], "msg=well container=abc") ||
				!strings.Contains(files["devices.json"], "GPU") || !strings.Contains(files["config.yaml"], "stateDir")) {
				t.Errorf("what is no secret is gone: %v", files)
			}
		})
	}
}

func unzip(t *testing.T, path string) map[string]string {
	t.Helper()
	archive, err := zip.OpenReader(path)
	if err != nil {
		t.Fatal(err)
	}
	defer archive.Close()
	files := map[string]string{}
	for _, f := range archive.File {
		r, err := f.Open()
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		files[f.Name] = string(text)
	}
	return files
}

func TestCapabilitiesOutput(t *testing.T) {
	t.Parallel()
	facts := brokenNode()
	linux := capabilitiesReport{OS: "linux", Containerd: reportContainerd(facts.Containerd, "linux", true), Shim: reportShim(facts.Shims)}
	server := capabilities.Capabilities{
		Windows: win32.Version{Major: 10, Build: 20348, Revision: 2113, Server: true, Product: "Windows Server 2022 Datacenter", Release: "21H2"},
		Schemas: []capabilities.Schema{{Major: 1, Minor: 0}, {Major: 2, Minor: 7}},
	}
	w := reportWindows(server)
	silent := doctor.Containerd{ConfigPath: `C:\Program Files\containerd\config.toml`, Err: errors.New("it does not answer"), FileErr: errors.New("config.toml:1:2: no TOML")}
	windows := capabilitiesReport{OS: "windows", windowsReport: &w, Containerd: reportContainerd(silent, "windows", false), Shim: reportShim([]doctor.Shim{{Path: `C:\shim.exe`, Err: fs.ErrNotExist}})}
	c := config.Default()
	c.ContainerOS = "linux"
	linux.configured("/etc/directx-nri/config.yaml", c, nil, nil)
	c.ContainerOS, c.Injection = "windows", config.InjectByKubelet
	windows.configured(`C:\ProgramData\directx-nri\config.yaml`, c, errors.New("config.yaml:3: replicas: 0 is not possible"), &server)
	for name, report := range map[string]capabilitiesReport{"capabilities-linux": linux, "capabilities-windows": windows} {
		for _, form := range []string{outputTable, outputJSON, outputYAML} {
			var out bytes.Buffer
			err := report.print(&out, terminal.Terminal{})
			if form != outputTable {
				out.Reset()
				err = printAs(&out, form, report)
			}
			if err != nil {
				t.Fatal(err)
			}
			golden(t, name+"-"+form, out.String())
		}
	}
}

func TestCapabilitiesOfContainerd(t *testing.T) {
	t.Parallel()
	facts := brokenNode()
	with := func(change func(*doctor.Containerd)) doctor.Containerd {
		c := facts.Containerd
		change(&c)
		return c
	}
	for name, test := range map[string]struct {
		containerd doctor.Containerd
		registered bool
		nri, from  string
		handler    string
	}{
		"the plugin is registered":  {facts.Containerd, true, "on", fromPlugin, "through our shim"},
		"by the file":               {facts.Containerd, false, "on", fromConfig, "through our shim"},
		"1.6 knows none":            {with(func(c *doctor.Containerd) { c.Version = "1.6.36" }), false, "off", fromConfig, "through our shim"},
		"not loaded":                {with(func(c *doctor.Containerd) { c.Loaded = nil }), false, "on", fromConfig, "through our shim by the file, and not known to be loaded so"},
		"loaded, the file is other": {with(func(c *doctor.Containerd) { c.File = containerdconfig.File{} }), false, "off", fromConfig, "through our shim until containerd is restarted"},
		"no file":                   {with(func(c *doctor.Containerd) { c.FileErr, c.File = fs.ErrPermission, containerdconfig.File{} }), false, nriUnknown, "", "through our shim until containerd is restarted"},
	} {
		r := reportContainerd(test.containerd, "linux", test.registered)
		if r.NRI != test.nri || r.NRIFrom != test.from || len(r.Handlers) != 1 || r.Handlers[0].String() != test.handler {
			t.Errorf("%s: %+v", name, r)
		}
	}
}
