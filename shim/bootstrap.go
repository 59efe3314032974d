package shim

import (
	"encoding/json"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/directx-nri/directx-nri/shim/shimfile"
)

// The answer of the real shim to a start is a protobuf message of new shims. The one field that matters is
// decoded without the generated types, which cost each start a millisecond.

// resultVersion is the field of containerd's BootstrapResult, containerd/api v1.12,
// runtime/bootstrap/v1/bootstrap.proto.
const resultVersion = 1

// bootstrapVersion returns the version in a shim's answer to start as containerd reads it. The answer
// is protobuf, JSON, or an address, which means version 2.
// https://github.com/containerd/containerd/blob/v2.4.2/core/runtime/v2/shim.go
func bootstrapVersion(answer []byte) int {
	if version, ok := decodeVersion(answer); ok {
		return version
	}
	var result struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(answer, &result); err != nil {
		return 2
	}
	return max(result.Version, 2)
}

// recordBypass records for the advertiser whether containerd runs this shim for a pod's
// containers: containerd 2.x does not if the sandbox's shim at path has answered start with
// bootstrap version 3 or more (ShimManager.Start in core/runtime/v2/shim_manager.go).
func (s *shim) recordBypass(path string, version int) {
	reason := ""
	if version >= 3 {
		reason = fmt.Sprintf("the real shim %s answers with bootstrap version %d, so containerd does not start the containers of pods with the runtime shim; use a shim that answers version 2, or set injection: kubelet with one that honors windows.devices",
			path, version)
	}
	inTime(func() {
		if err := shimfile.RecordBypass(s.stateDir, reason); err != nil {
			s.logger.WithError(err).Error("Cannot record the bootstrap version of the real shim")
		}
	})
}

// decodeVersion returns the version in a protobuf message, 0 if it has none. ok is false if the message is malformed, or
// has a group, which containerd's messages do not have and JSON may begin with.
func decodeVersion(message []byte) (version int, ok bool) {
	for len(message) > 0 {
		number, kind, length := protowire.ConsumeTag(message)
		if length < 0 || kind == protowire.StartGroupType {
			return 0, false
		}
		message = message[length:]
		if length = protowire.ConsumeFieldValue(number, kind, message); length < 0 {
			return 0, false
		}
		if number == resultVersion && kind == protowire.VarintType {
			n, _ := protowire.ConsumeVarint(message)
			version = int(int32(n)) //nolint:gosec // It is an int32.
		}
		message = message[length:]
	}
	return version, true
}
