package shim

import (
	"testing"

	"github.com/containerd/containerd/api/runtime/bootstrap/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/directx-nri/directx-nri/internal/testutil"
)

func TestBootstrapVersion(t *testing.T) {
	t.Parallel()
	result := &bootstrap.BootstrapResult{Version: 3, Address: `\\.\pipe\x`, Protocol: "ttrpc"}
	binary, err := proto.Marshal(result)
	testutil.NoError(t, err)
	inJSON, err := protojson.Marshal(result)
	testutil.NoError(t, err)
	for answer, want := range map[string]int{
		`\\.\pipe\containerd-shim-1-pipe`: 2, "npipe:////./pipe/x\n": 2, "unix:///run/containerd/s/1": 2,
		`{"version":1}`: 2, `{"version":`: 2, string(binary): 3, string(inJSON) + "\n": 3,
	} {
		if got := bootstrapVersion([]byte(answer)); got != want {
			t.Errorf("%q: %d", answer, got)
		}
	}
}
