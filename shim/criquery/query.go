// Package criquery asks containerd's CRI service for the annotations of a container and its pod. It is a
// gRPC client for these two calls: grpc-go would cost each start of the runtime shim 4 ms, and
// golang.org/x/net/http2 0.5 ms, although few containers need the answer.
package criquery

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// Fields of messages in k8s.io/cri-api v0.34, pkg/apis/runtime/v1/api.proto.
const (
	requestID            = 1 // ContainerStatusRequest.container_id, PodSandboxStatusRequest.pod_sandbox_id
	responseStatus       = 1 // ContainerStatusResponse.status, PodSandboxStatusResponse.status
	containerAnnotations = 13
	podAnnotations       = 8
	entryKey             = 1
	entryValue           = 2
)

// Query returns the annotations of a container and those of its pod's sandbox, from the containerd at
// address: a Unix socket, or a named pipe on Windows. They are those of the requests by which the kubelet
// has created both. containerd has timeout to answer.
func Query(address string, timeout time.Duration, containerID, sandboxID string) (container, pod map[string]string, err error) {
	conn, err := dial(address)
	if err != nil {
		return nil, nil, fmt.Errorf("connect to %s: %w", address, err)
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		return nil, nil, err
	}
	answers, err := call(conn, []request{
		{"/runtime.v1.RuntimeService/ContainerStatus", frameMessage(containerID)},
		{"/runtime.v1.RuntimeService/PodSandboxStatus", frameMessage(sandboxID)},
	})
	if err != nil {
		return nil, nil, err
	}
	container, err = annotations(answers[0], containerAnnotations)
	if err == nil {
		pod, err = annotations(answers[1], podAnnotations)
	}
	return container, pod, err
}

// frameMessage returns the gRPC message of a request with an ID.
// https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md
func frameMessage(id string) []byte {
	message := protowire.AppendString(protowire.AppendTag(nil, requestID, protowire.BytesType), id)
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...)
}

// annotations returns the annotations in a gRPC message with a response, whose status has them in a field.
func annotations(answer []byte, number protowire.Number) (map[string]string, error) {
	const prefix = 5
	if len(answer) < prefix || answer[0] != 0 || int64(binary.BigEndian.Uint32(answer[1:])) != int64(len(answer)-prefix) {
		return nil, errors.New("malformed gRPC message")
	}
	statuses, err := fields(answer[prefix:], responseStatus)
	found := map[string]string{}
	for _, status := range statuses {
		entries, entriesErr := fields(status, number)
		err = errors.Join(err, entriesErr)
		for _, entry := range entries {
			key, keyErr := fields(entry, entryKey)
			value, valueErr := fields(entry, entryValue)
			err = errors.Join(err, keyErr, valueErr)
			found[last(key)] = last(value)
		}
	}
	return found, err
}

// last returns the value of a field that exists once, "" if it does not.
func last(values [][]byte) string {
	if len(values) == 0 {
		return ""
	}
	return string(values[len(values)-1])
}

// fields returns the values of a field of a message that are messages or strings.
func fields(message []byte, number protowire.Number) (values [][]byte, err error) {
	for len(message) > 0 {
		n, kind, length := protowire.ConsumeTag(message)
		if length < 0 {
			return nil, protowire.ParseError(length)
		}
		message = message[length:]
		if length = protowire.ConsumeFieldValue(n, kind, message); length < 0 {
			return nil, protowire.ParseError(length)
		}
		if n == number && kind == protowire.BytesType {
			value, _ := protowire.ConsumeBytes(message)
			values = append(values, value)
		}
		message = message[length:]
	}
	return values, nil
}
