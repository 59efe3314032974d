package shim

import (
	"bytes"
	"testing"

	"github.com/containerd/containerd/api/types"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/shim/shimfile"
)

func text(b []byte, number protowire.Number, value string) []byte {
	return protowire.AppendString(protowire.AppendTag(b, number, protowire.BytesType), value)
}

// params are bootstrap parameters as containerd 2.4 makes them.
func params(extensions ...[]byte) []byte {
	b := text(nil, 1, "container-1")
	b = text(b, 2, "k8s.io")
	b = protowire.AppendVarint(protowire.AppendTag(b, 3, protowire.VarintType), 4)
	for i, value := range []string{"v2.4.2", "address", "address", "containerd"} {
		b = text(b, protowire.Number(4+i), value)
	}
	for _, extension := range extensions {
		b = text(b, 8, string(extension))
	}
	return b
}

func TestRunhcsStart(t *testing.T) {
	t.Parallel()
	options := text(text(nil, 1, "containerd.runhcs.v1.Options"), 2, "\x10\x01")
	fixed := protowire.AppendFixed64(protowire.AppendTag(protowire.AppendFixed32(protowire.AppendTag(nil, 20, protowire.Fixed32Type), 1), 21, protowire.Fixed64Type), 1)
	for name, test := range map[string]struct{ given, want []byte }{
		"nothing":                      {nil, nil},
		"options as they are":          {options, options},
		"type alone":                   {text(nil, 1, "x"), text(nil, 1, "x")},
		"parameters with options":      {params(text(nil, 1, string(options))), options},
		"parameters without":           {params(), nil},
		"parameters, fixed sizes":      {append(fixed, params(text(nil, 1, string(options)))...), options},
		"parameters, empty extension":  {params([]byte{}), nil},
		"parameters, foreign content":  {params(protowire.AppendVarint(protowire.AppendTag(nil, 7, protowire.VarintType), 1)), nil},
		"parameters, broken extension": {params([]byte{0x0a, 0x7f}), nil},
		"not protobuf":                 {[]byte("runtime options"), []byte("runtime options")},
		"torn":                         {params(text(nil, 1, string(options)))[:39], params(text(nil, 1, string(options)))[:39]},
	} {
		if got := runtimeOptions(test.given); !bytes.Equal(got, test.want) {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

func TestBootstrapVersion(t *testing.T) {
	t.Parallel()
	result := text(protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 3), 2, `\\.\pipe\x`)
	for answer, want := range map[string]int{
		`\\.\pipe\containerd-shim-1-pipe`: 2, "npipe:////./pipe/x\n": 2, "unix:///run/containerd/s/1": 2, `{"version":3,"address":"x","protocol":"ttrpc"}` + "\n": 3,
		`{"version":1}`: 2, `{"version":`: 2, string(result): 3,
	} {
		if got := bootstrapVersion([]byte(answer)); got != want {
			t.Errorf("%q: %d", answer, got)
		}
	}
}

func TestIsRunhcs(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]bool{
		"/x/containerd-shim-runhcs-v1.exe": true, "containerd-shim-runhcs-v1": true, "/x/Containerd-Shim-RunHCS-v1.EXE": true,
		"/x/containerd-shim-runc-v2": false, "/shim-runhcs-v1/other": false,
	} {
		if got := isRunhcs(path); got != want {
			t.Errorf("%s: %t", path, got)
		}
	}
}

// TestRuntimeInfo decodes the answer with containerd's own type.
func TestRuntimeInfo(t *testing.T) {
	t.Parallel()
	var got types.RuntimeInfo
	testutil.NoError(t, proto.Unmarshal(runtimeInfo(shimfile.RuntimeName, "v1.2.3"), &got))
	want := &types.RuntimeInfo{Name: "io.containerd.directx.v1", Version: &types.RuntimeVersion{Version: "v1.2.3"}}
	if !proto.Equal(&got, want) {
		t.Errorf("%v, want %v", &got, want)
	}
}

func FuzzRunhcsStart(f *testing.F) {
	f.Add([]byte("runtime options"))
	f.Add(params(text(nil, 1, "x")))
	f.Add(params([]byte{0x0a, 0x7f}))
	f.Fuzz(func(t *testing.T, given []byte) {
		if got := runtimeOptions(given); len(got) > len(given) {
			t.Fatalf("%q became %q", given, got)
		}
		bootstrapVersion(given)
	})
}
