package shim

import (
	"encoding/binary"
	"encoding/json"
	"maps"
	"path/filepath"
	"slices"
	"strings"
)

// containerd passes protobuf messages to shims. The few fields that matter are
// decoded and encoded here: the generated types cost each start a millisecond.

// Fields of containerd's BootstrapParams and its Extension, containerd/api
// v1.12, runtime/bootstrap/v1/bootstrap.proto. The runtime's options are a
// google.protobuf.Any, which has the fields 1 and 2 alone.
const (
	paramsExtensions = 8
	extensionValue   = 1
	lastOfAny        = 2
)

// paramsFlags are the flags of a start with the same values as bootstrap parameters.
// containerd marks the flags as to be removed.
// https://github.com/containerd/containerd/blob/v2.4.2/core/runtime/v2/command.go
func paramsFlags() map[uint64]string {
	return map[uint64]string{1: "id", 2: "namespace", 6: "address", 7: "publish-binary"}
}

// resultVersion is the field of containerd's BootstrapResult, in the same file as
// BootstrapParams.
const resultVersion = 1

// Fields of containerd's RuntimeInfo and RuntimeVersion, api/types/introspection.proto.
const (
	infoName       = 1
	infoVersion    = 2
	versionVersion = 1
)

// lengthDelimited is the wire type of texts and messages.
// https://protobuf.dev/programming-guides/encoding/#structure
const lengthDelimited = 2

// isOld reports whether the real shim at path reads only the runtime's options
// from its standard input and has no -info. containerd 2.3 and later passes its
// bootstrap parameters there, except to the two shims that it recognizes by their
// file names, and so passes them to ours, behind which such a shim may run.
func isOld(path string) bool {
	name := strings.ToLower(filepath.Base(path)) // Windows finds it in any case.
	return strings.Contains(name, "shim-runhcs-v1") || strings.Contains(name, "shim-runc-v1")
}

// translate returns the standard input and the arguments of a start for a real shim
// that [isOld]: of bootstrap parameters the runtime's options, an Any, and the flags
// that are missing. Everything else stays as it is.
func translate(stdin []byte, args []string) (options []byte, allArgs []string) {
	flags := map[string]string{}
	bootstrap := false
	ok := eachField(stdin, func(number uint64, value []byte, _ uint64) {
		bootstrap = bootstrap || number > lastOfAny
		if number == paramsExtensions && options == nil {
			options = field(value, extensionValue)
		}
		if name := paramsFlags()[number]; name != "" {
			flags[name] = string(value)
		}
	})
	if !ok || !bootstrap {
		return stdin, args
	}
	_, given := parseArgs(args)
	allArgs = args
	for _, name := range slices.Sorted(maps.Keys(flags)) {
		if _, ok := given[name]; !ok {
			allArgs = append([]string{"-" + name, flags[name]}, allArgs...)
		}
	}
	return options, allArgs
}

// bootstrapVersion returns the version in a shim's answer to start, as containerd reads
// it: protobuf, JSON, or an address, which is version 2.
// https://github.com/containerd/containerd/blob/v2.4.2/core/runtime/v2/shim.go
func bootstrapVersion(answer []byte) int {
	version := 0
	ok := eachField(answer, func(number uint64, _ []byte, n uint64) {
		if number == resultVersion {
			version = int(n)
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

// field returns the text or message in a message's field, nil if there is none.
func field(message []byte, wanted uint64) (found []byte) {
	eachField(message, func(number uint64, value []byte, _ uint64) {
		if number == wanted && found == nil {
			found = value
		}
	})
	return found
}

// eachField calls do with the number of each field of a message, and with its
// value if that is a text or a message, or a number of variable length. It returns
// false if the message is malformed.
func eachField(message []byte, do func(number uint64, value []byte, n uint64)) bool {
	for len(message) > 0 {
		tag, n := binary.Uvarint(message)
		if n <= 0 || tag>>3 == 0 {
			return false
		}
		message = message[n:]
		var size, varint uint64
		switch tag & 7 {
		case 0: // a number of variable length
			varint, n = binary.Uvarint(message)
			size = uint64(max(n, 0))
		case 1:
			size = 8
		case lengthDelimited:
			size, n = binary.Uvarint(message)
			message = message[max(n, 0):]
		case 5:
			size = 4
		default: // groups, which no message of containerd has
			return false
		}
		if n <= 0 || size > uint64(len(message)) {
			return false
		}
		var value []byte
		if tag&7 == lengthDelimited {
			value = message[:size:size]
		}
		do(tag>>3, value, varint)
		message = message[size:]
	}
	return true
}

// runtimeInfo returns what a shim writes to its standard output for -info.
func runtimeInfo(name, version string) []byte {
	return appendField(appendField(nil, infoName, []byte(name)), infoVersion, appendField(nil, versionVersion, []byte(version)))
}

func appendField(message []byte, number uint64, value []byte) []byte {
	message = binary.AppendUvarint(message, number<<3|lengthDelimited)
	message = binary.AppendUvarint(message, uint64(len(value)))
	return append(message, value...)
}
