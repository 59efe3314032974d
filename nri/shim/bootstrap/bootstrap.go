// Package bootstrap translates the standard input of a runtime shim for an older
// shim.
package bootstrap

import (
	"path/filepath"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
)

// Fields of containerd's BootstrapParams and its Extension, containerd/api
// v1.12, runtime/bootstrap/v1/bootstrap.proto. The runtime's options are a
// google.protobuf.Any, which has the fields 1 and 2 alone.
const (
	paramsExtensions = 8
	extensionValue   = 1
	lastOfAny        = 2
)

// ReadsOptions reports whether the real shim at path reads only the runtime's
// options from its standard input. containerd 2.3 and later passes its bootstrap
// parameters there, except to the two shims that it recognizes by their file
// names, and so passes them to ours, behind which such a shim may run.
func ReadsOptions(path string) bool {
	name := strings.ToLower(filepath.Base(path)) // Windows finds it in any case.
	return strings.Contains(name, "shim-runhcs-v1") || strings.Contains(name, "shim-runc-v1")
}

// Options returns the runtime's options in a shim's standard input: the Any in
// bootstrap parameters, and everything else as it is.
func Options(given []byte) []byte {
	var options []byte
	bootstrap := false
	for rest := given; len(rest) > 0; {
		number, kind, n := protowire.ConsumeTag(rest)
		if n < 0 {
			return given
		}
		size := protowire.ConsumeFieldValue(number, kind, rest[n:])
		if size < 0 {
			return given
		}
		bootstrap = bootstrap || number > lastOfAny
		if number == paramsExtensions && kind == protowire.BytesType && options == nil {
			extension, _ := protowire.ConsumeBytes(rest[n:])
			options = field(extension, extensionValue)
		}
		rest = rest[n+size:]
	}
	if !bootstrap {
		return given
	}
	return options
}

// field returns the bytes of a message's field, nil if there is none.
func field(message []byte, wanted protowire.Number) []byte {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return nil
		}
		if number == wanted && kind == protowire.BytesType {
			if value, size := protowire.ConsumeBytes(message[n:]); size >= 0 {
				return value
			}
			return nil
		}
		size := protowire.ConsumeFieldValue(number, kind, message[n:])
		if size < 0 {
			return nil
		}
		message = message[n+size:]
	}
	return nil
}
