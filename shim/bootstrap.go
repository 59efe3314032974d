package shim

import (
	"encoding/json"
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/directx-nri/directx-nri/shim/shimfile"
)

// On Windows, this shim stands between containerd and the real shim: it passes on the standard input of
// a start and reads the answer. Both are protobuf messages. The few fields that matter are decoded
// without the generated types, which cost each start a millisecond.

// Fields of containerd's BootstrapParams and its Extension, containerd/api
// v1.12, runtime/bootstrap/v1/bootstrap.proto. The runtime's options are a
// google.protobuf.Any, which has only the fields 1 and 2.
const (
	paramsExtensions = 8
	extensionValue   = 1
	lastFieldOfAny   = 2
)

// resultVersion is the field of containerd's BootstrapResult, in the same file as BootstrapParams.
const resultVersion = 1

// runtimeOptions returns the standard input of a start as runhcs expects it: an Any with the runtime's
// options. If stdin has bootstrap parameters, the options are one of them. Otherwise, stdin is the Any.
func runtimeOptions(stdin []byte) (options []byte) {
	isParams := false
	ok := eachField(stdin, func(f field) {
		isParams = isParams || f.number > lastFieldOfAny
		if f.number == paramsExtensions && options == nil {
			options = firstMessage(f.message(), extensionValue)
		}
	})
	if !ok || !isParams {
		return stdin
	}
	return options
}

// bootstrapVersion returns the version in a shim's answer to start as containerd reads it. The answer
// is protobuf, JSON, or an address, which means version 2.
// https://github.com/containerd/containerd/blob/v2.4.2/core/runtime/v2/shim.go
func bootstrapVersion(answer []byte) int {
	version := 0
	ok := eachField(answer, func(f field) {
		if n, length := protowire.ConsumeVarint(f.value); length > 0 && f.number == resultVersion && f.kind == protowire.VarintType {
			version = int(int32(n)) //nolint:gosec // It is an int32.
		}
	})
	if ok {
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
	err := shimfile.CheckBypass(s.stateDir)
	switch {
	case version < 3 && errors.Is(err, shimfile.ErrBypassed):
		err = shimfile.ClearBypass(s.stateDir)
	case version >= 3 && err == nil:
		reason := fmt.Sprintf("the real shim %s answers with bootstrap version %d, so containerd does not start the containers of pods with the runtime shim; use a shim that answers version 2, or one that honors windows.devices with injection: kubelet; then run 'dxctl runtime install'",
			path, version)
		s.log().Error(reason)
		err = shimfile.RecordBypass(s.stateDir, reason)
	}
	if err != nil && !errors.Is(err, shimfile.ErrBypassed) { // That is recorded already.
		s.log().WithError(err).Error("Cannot record the bootstrap version of the real shim")
	}
}

// firstMessage returns the first message in a field of a message, nil if there is none.
func firstMessage(message []byte, number protowire.Number) (first []byte) {
	eachField(message, func(f field) {
		if f.number == number && first == nil {
			first = f.message()
		}
	})
	return first
}

// field is a field of a message, with its value as it is encoded.
type field struct {
	number protowire.Number
	kind   protowire.Type
	value  []byte
}

// message returns the value of a field that is a message, nil if it is none.
func (f field) message() []byte {
	if f.kind != protowire.BytesType {
		return nil
	}
	message, _ := protowire.ConsumeBytes(f.value)
	return message
}

// eachField calls do with each field of a message. It returns false if the message is malformed, or
// has a group, which containerd's messages do not have and JSON may begin with.
func eachField(message []byte, do func(field)) bool {
	for len(message) > 0 {
		number, kind, length := protowire.ConsumeTag(message)
		if length < 0 || kind == protowire.StartGroupType {
			return false
		}
		message = message[length:]
		length = protowire.ConsumeFieldValue(number, kind, message)
		if length < 0 {
			return false
		}
		do(field{number, kind, message[:length]})
		message = message[length:]
	}
	return true
}
