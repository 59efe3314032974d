package shim

import (
	"encoding/binary"
	"path/filepath"
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

// runtimeOptions returns the runtime's options in a shim's standard input: the Any
// in bootstrap parameters, and everything else as it is.
func runtimeOptions(given []byte) []byte {
	var options []byte
	bootstrap := false
	ok := eachField(given, func(number uint64, value []byte) {
		bootstrap = bootstrap || number > lastOfAny
		if number == paramsExtensions && options == nil {
			options = field(value, extensionValue)
		}
	})
	if !ok || !bootstrap {
		return given
	}
	return options
}

// field returns the text or message in a message's field, nil if there is none.
func field(message []byte, wanted uint64) (found []byte) {
	eachField(message, func(number uint64, value []byte) {
		if number == wanted && found == nil {
			found = value
		}
	})
	return found
}

// eachField calls do with the number of each field of a message, and with its
// value if that is a text or a message. It returns false if the message is
// malformed.
func eachField(message []byte, do func(number uint64, value []byte)) bool {
	for len(message) > 0 {
		tag, n := binary.Uvarint(message)
		if n <= 0 || tag>>3 == 0 {
			return false
		}
		message = message[n:]
		var size uint64
		switch tag & 7 {
		case 0: // a number of variable length
			_, n = binary.Uvarint(message)
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
		do(tag>>3, value)
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
