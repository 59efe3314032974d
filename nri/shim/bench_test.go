package shim

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"directx-nri/discovery"
	"directx-nri/discovery/compiled"
	"directx-nri/internal/policy"
)

// libraries is how many runtime files the benchmarks' GPU has.
const libraries = 20

// BenchmarkPrepare measures what a start does in this process before the real
// shim runs, without the time that a program takes to be there at all.
func BenchmarkPrepare(b *testing.B) {
	bundle, stateDir := benchNode(b)
	for _, row := range []struct {
		name    string
		request string
		size    int
	}{
		{"no request/5kB", "A=B", 5_000},
		{"no request/60kB", "A=B", 60_000},
		{"no request/4MB", "A=B", 4 << 20},
		{"20 mounts/5kB", "DIRECTX_VISIBLE_DEVICES=all", 5_000},
		{"20 mounts/60kB", "DIRECTX_VISIBLE_DEVICES=all", 60_000},
		{"20 mounts/4MB", "DIRECTX_VISIBLE_DEVICES=all", 4 << 20},
	} {
		spec := benchSpec(b, row.request, row.size)
		path := filepath.Join(bundle, specName)
		b.Run(row.name, func(b *testing.B) {
			b.SetBytes(int64(len(spec)))
			b.ReportAllocs()
			for b.Loop() {
				b.StopTimer()
				if err := os.WriteFile(path, spec, 0o644); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
				s := newShim(Call{
					Self: "/none", Args: []string{"-id", "bench", "start"}, Bundle: bundle, StateDir: stateDir, Stderr: io.Discard,
				})
				if err := s.prepare(); err != nil {
					b.Fatal(err)
				}
			}
			b.StopTimer()
			after, err := os.ReadFile(path)
			if err != nil {
				b.Fatal(err)
			}
			if edited := strings.Contains(string(after), "library19"); edited != (row.request != "A=B") {
				b.Errorf("the spec was edited: %t", edited)
			}
		})
	}
}

// benchNode returns a bundle and the state directory of a node with one GPU.
func benchNode(b *testing.B) (bundle, stateDir string) {
	b.Helper()
	if runtime.GOOS != "linux" {
		b.Skip("device nodes and libraries need Linux")
	}
	dir := b.TempDir()
	bundle, stateDir = filepath.Join(dir, "bundle"), filepath.Join(dir, "state")
	if err := os.Mkdir(bundle, 0o700); err != nil {
		b.Fatal(err)
	}
	gpu := discovery.Device{
		InstanceID: "BENCH", SupportsDisplay: true,
		DeviceNodes: []discovery.DeviceNode{{Path: "/dev/null", ContainerPath: "/dev/null"}},
	}
	for i := range libraries {
		name := fmt.Sprintf("library%02d.so", i)
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			b.Fatal(err)
		}
		gpu.Libraries = append(gpu.Libraries, discovery.Library{Source: filepath.Join(dir, name), Destination: "/usr/lib/wsl/" + name})
	}
	p := policy.Default()
	p.Inventory = true
	if err := errors.Join(compiled.Write(stateDir, []discovery.Device{gpu}), policy.Write(stateDir, p)); err != nil {
		b.Fatal(err)
	}
	return bundle, stateDir
}

// benchSpec returns a container's spec with as many variables as make it size
// bytes long, as a cluster's services do.
func benchSpec(b *testing.B, request string, size int) []byte {
	b.Helper()
	env := []string{request}
	for i, length := 0, 0; length < size; i++ {
		variable := fmt.Sprintf("SERVICE_%06d_PORT_8443_TCP=tcp://10.%d.%d.%d:8443", i, i>>16, i>>8&0xff, i&0xff)
		length += len(variable) + len(`"",`)
		env = append(env, variable)
	}
	data, err := json.Marshal(map[string]any{
		"ociVersion": "1.1.0", "process": map[string]any{"args": []string{"/bin/true"}, "env": env, "cwd": "/"}, "linux": map[string]any{},
		"mounts": []map[string]any{{"destination": "/proc", "type": "proc", "source": "proc"}},
	})
	if err != nil {
		b.Fatal(err)
	}
	return data
}
