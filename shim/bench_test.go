//go:build linux

package shim

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/discovery/hostfiles"
	"github.com/directx-nri/directx-nri/discovery/node"
	"github.com/directx-nri/directx-nri/internal/testutil"
)

// libraries is how many runtime files the benchmarks' GPU has.
const libraries = 20

// BenchmarkPrepare measures what a start does in this process before the real
// shim runs, without the time that a program takes to be there at all.
func BenchmarkPrepare(b *testing.B) {
	node := benchNode(b)
	for _, row := range []struct {
		name, request string
		size          int
	}{
		{"no request/5kB", "A=B", 5_000},
		{"no request/60kB", "A=B", 60_000},
		{"no request/4MB", "A=B", 4 << 20},
		{"20 mounts/5kB", "DIRECTX_VISIBLE_DEVICES=all", 5_000},
		{"20 mounts/60kB", "DIRECTX_VISIBLE_DEVICES=all", 60_000},
		{"20 mounts/4MB", "DIRECTX_VISIBLE_DEVICES=all", 4 << 20},
	} {
		spec := benchSpec(b, row.request, row.size)
		b.Run(row.name, func(b *testing.B) {
			b.SetBytes(int64(len(spec)))
			b.ReportAllocs()
			for b.Loop() {
				b.StopTimer()
				node.write("bundle/config.json", spec)
				b.StartTimer()
				s := shim{
					program: "/none", args: []string{"-id", "bench", "start"}, bundle: node.path("bundle"), stateDir: node.path("state"), files: hostfiles.Root(""), stderr: io.Discard,
				}
				testutil.NoError(b, s.editBundle())
			}
			b.StopTimer()
			if edited := strings.Contains(node.read("bundle/config.json"), "library19"); edited != (row.request != "A=B") {
				b.Errorf("the spec was edited: %t", edited)
			}
		})
	}
}

// benchNode returns a node whose GPU has many libraries.
func benchNode(b *testing.B) *bed {
	b.Helper()
	n := newBed(b)
	gpu := discovery.Device{
		InstanceID: "BENCH", SupportsDisplay: true,
		DeviceNodes: []discovery.DeviceNode{{Path: "/dev/null", ContainerPath: "/dev/null"}},
	}
	for i := range libraries {
		name := fmt.Sprintf("lib/library%02d.so", i)
		n.write(name, "")
		gpu.Libraries = append(gpu.Libraries, discovery.Library{Source: n.path(name), Destination: "/usr/lib/wsl/" + name})
	}
	testutil.NoError(b, node.CompiledInventory(n.path("state")).Write([]discovery.Device{gpu}))
	return n
}

// benchSpec returns a container's spec with as many variables as make it size
// bytes long, as a cluster's services do.
func benchSpec(b *testing.B, request string, size int) string {
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
	testutil.NoError(b, err)
	return string(data)
}
