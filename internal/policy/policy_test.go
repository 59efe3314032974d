package policy

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/internal/pci"
	"github.com/directx-nri/directx-nri/internal/testutil"
)

func example() Policy {
	no := false
	return Policy{
		CompiledFrom: CompiledFrom{Config: "/etc/directx-nri/config.yaml", ConfigSHA256: "00ff", Inventory: "/etc/directx-nri/gpus.yaml", InventorySHA256: "ff00"},
		UseInventory: true,
		Resources: []ResourceRule{{
			Name: "example.com/t4", Replicas: 4, AllocationPolicy: Packed, MaxPerContainer: 2, MixedDrivers: AllowMixed,
			Match: Match{
				Kind: "display", Vendors: []pci.Vendor{0x10DE}, Descriptions: []string{"*T4*"}, LocationPaths: []string{"PCIROOT(0)#*"},
				DedicatedMemory: MemoryBounds{1 << 30, 1 << 34}, DriverVersion: DriverBounds{DriverVersion{31, 0, 15, 5222}, DriverVersion{31, 65535, 65535, 65535}},
				Integrated: &no, Detachable: &no,
			},
		}},
		Assignment: AssignByPath, DriverFiles: FilesNone, Injection: InjectByKubelet,
		RuntimeFiles:    map[pci.Vendor]RuntimeFiles{0x8086: {Remove: []string{"*.txt"}, Add: []AddedFile{{Source: `bin\a.exe`, Directory: SysWOW64, Destination: "b.exe"}}}},
		ExtraMounts:     ExtraMounts{Sources: MountSourcesHostDirectories, HostDirectories: []string{"/srv/models"}, Destinations: []string{"/opt"}, Max: 3},
		Standalone:      Standalone{true},
		VisibilityHints: true, FailOnInitError: true, Metrics: Metrics{":9400"},
		Log: Log{Level: "debug", Format: "json"},
	}
}

// TestWriteAndRead uses a policy with a value in each field, so that none is lost.
func TestWriteAndRead(t *testing.T) {
	t.Parallel()
	stateDir := filepath.Join(t.TempDir(), "state")
	if got, err := Read(stateDir); err != nil || !reflect.DeepEqual(got, Default()) {
		t.Errorf("without a file: %+v, %v; want the defaults", got, err)
	}
	want := example()
	for i := range reflect.TypeFor[Policy]().NumField() {
		if reflect.ValueOf(want).Field(i).IsZero() {
			t.Errorf("the example has no %s", reflect.TypeFor[Policy]().Field(i).Name)
		}
	}
	for _, p := range []Policy{want, Default()} {
		testutil.NoError(t, Write(stateDir, p))
		got, err := Read(stateDir)
		if err != nil || !reflect.DeepEqual(got, p) {
			t.Errorf("got %+v, %v\nwant %+v", got, err, p)
		}
	}
}

func TestReadRefuses(t *testing.T) {
	t.Parallel()
	valid, err := json.Marshal(policyFile{format, example()})
	testutil.NoError(t, err)
	edit := func(old, with string) string { return strings.Replace(string(valid), old, with, 1) }
	for name, text := range map[string]string{
		"empty":               "",
		"torn":                string(valid[:len(valid)/2]),
		"two documents":       string(valid) + string(valid),
		"foreign":             `{"name": "something else"}`,
		"another format":      edit(`"format":3`, `"format":2`),
		"no resources":        `{"format":3,"assignmentMode":"auto","injection":"nri","extraMounts":{"sources":"off"},"log":{"level":"info","format":"text"}}`,
		"a version too large": edit(`"min":"31.0.15.5222"`, `"min":"31.0.15.522222"`),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stateDir := t.TempDir()
			testutil.NoError(t, os.WriteFile(Path(stateDir), []byte(text), 0o600))
			_, err := Read(stateDir)
			testutil.CheckError(t, "read", err, Path(stateDir))
			// The compiler may replace it.
			testutil.NoError(t, Write(stateDir, example()))
			if _, err := Read(stateDir); err != nil {
				t.Error(err)
			}
		})
	}
}

// A policy that is known to be lost is not replaced by the defaults.
func TestReadLost(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(stateDir string) error
		says   string // "" for the defaults
	}{
		"allocations": {func(dir string) error { return os.Mkdir(paths.Allocations(dir), 0o700) }, "; run 'dxctl config apply'"},
		"nothing":     {func(string) error { return nil }, ""},
	} {
		stateDir := filepath.Join(t.TempDir(), "state")
		p := Default()
		testutil.NoError(t, Write(stateDir, p), os.Remove(Path(stateDir)), test.change(stateDir))
		got, err := Read(stateDir)
		testutil.CheckError(t, name, err, test.says)
		if err == nil && !reflect.DeepEqual(got.Resources, p.Resources) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestConfigureLog(t *testing.T) {
	t.Parallel()
	for format, want := range map[string]string{"text": "level=warning msg=x pod=team/gpu", "json": `"level":"warning","msg":"x","pod":"team/gpu"`} {
		var out bytes.Buffer
		log := errlog.NewLogger(&out)
		Log{Level: "warn", Format: format}.Configure(log)
		log.Info("less severe")
		log.WithField("pod", "team/gpu").Warn("x")
		if got := out.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, want) {
			t.Errorf("%s: %s", format, got)
		}
	}
}
