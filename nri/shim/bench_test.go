package shim

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"directx-nri/internal/config"
)

// libraries is how many runtime files the benchmarks' GPU has.
const libraries = 20

// BenchmarkPrepare measures what a start does in this process before the real
// shim runs, without the time that a program takes to be there at all.
func BenchmarkPrepare(b *testing.B) {
	bundle, configPath := benchNode(b)
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
					Self: "/none", Args: []string{"-id", "bench", "start"}, Bundle: bundle, ConfigPath: configPath, Stderr: io.Discard,
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

// benchNode makes a node with one GPU and a bundle on it.
func benchNode(b *testing.B) (bundle, configPath string) {
	b.Helper()
	if runtime.GOOS != "linux" {
		b.Skip("the device node and the libraries are Linux'")
	}
	dir := b.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	write := func(name, content string) {
		if err := os.WriteFile(path(name), []byte(content), 0o600); err != nil {
			b.Fatal(err)
		}
	}
	for _, folder := range []string{"bundle", "etc"} {
		if err := os.Mkdir(path(folder), 0o700); err != nil {
			b.Fatal(err)
		}
	}
	var inventory strings.Builder
	fmt.Fprintf(&inventory, "apiVersion: %s\nkind: Inventory\ndevices:\n- instanceID: BENCH\n  display: true\n  linux:\n"+
		"    deviceNodes: [/dev/null]\n    libraries:\n", config.APIVersion)
	for i := range libraries {
		name := fmt.Sprintf("library%02d.so", i)
		write(name, "")
		fmt.Fprintf(&inventory, "    - {source: %s, destination: /usr/lib/wsl/%s}\n", path(name), name)
	}
	write("etc/gpus.yaml", inventory.String())
	write("etc/config.yaml", fmt.Sprintf("apiVersion: %s\nkind: %s\nstateDir: %s\ninventory: %s\n",
		config.APIVersion, config.Kind, path("state"), path("etc/gpus.yaml")))
	return path("bundle"), path("etc/config.yaml")
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
