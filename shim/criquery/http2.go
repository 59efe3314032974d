package criquery

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"

	"golang.org/x/net/http2/hpack"
)

// What a client needs of HTTP/2 for requests that fit into one frame each.
// https://www.rfc-editor.org/rfc/rfc9113

const (
	preface     = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	headerBytes = 9
	// maxFrame is the largest payload of a frame, as no other is agreed on.
	maxFrame = 16 << 10
	// maxAnswers limits all answers together. containerd's own limit for a message is 16 MiB.
	maxAnswers = 32 << 20
)

// Types of frames.
const (
	frameData         = 0
	frameHeaders      = 1
	frameReset        = 3
	frameSettings     = 4
	framePing         = 6
	frameGoAway       = 7
	frameWindowUpdate = 8
	frameContinuation = 9
)

// Flags of frames.
const (
	flagEndStream  = 0x1 // of data and headers
	flagAck        = 0x1 // of settings and pings
	flagEndHeaders = 0x4
	flagPadded     = 0x8
	flagPriority   = 0x20
)

const settingInitialWindowSize = 4

// request is a call of a gRPC method.
type request struct {
	path    string
	message []byte
}

// stream is the answer to a request.
type stream struct {
	data  []byte
	ended bool
}

func appendFrame(b []byte, kind, flags byte, id uint32, payload []byte) []byte {
	b = append(b, byte(len(payload)>>16), byte(len(payload)>>8), byte(len(payload)), kind, flags)
	return append(binary.BigEndian.AppendUint32(b, id), payload...)
}

// encodeRequests returns everything that the client sends on its own, for streams 1, 3 and so on.
func encodeRequests(requests []request) []byte {
	window := binary.BigEndian.AppendUint32(nil, maxAnswers)
	b := appendFrame([]byte(preface), frameSettings, 0, 0, append([]byte{0, settingInitialWindowSize}, window...))
	b = appendFrame(b, frameWindowUpdate, 0, 0, window)
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for i, r := range requests {
		block.Reset()
		for _, field := range []hpack.HeaderField{
			{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "http"},
			{Name: ":path", Value: r.path}, {Name: ":authority", Value: "localhost"},
			{Name: "content-type", Value: "application/grpc"}, {Name: "te", Value: "trailers"},
		} {
			_ = encoder.WriteField(field) // A buffer does not fail.
		}
		id := uint32(2*i + 1)
		b = appendFrame(b, frameHeaders, flagEndHeaders, id, block.Bytes())
		b = appendFrame(b, frameData, flagEndStream, id, r.message)
	}
	return b
}

// call makes the requests at once on a new connection and returns the messages of their answers. It reads and
// writes at the same time: the buffers of a named pipe can be empty, and containerd writes first.
func call(conn io.ReadWriteCloser, requests []request) ([][]byte, error) {
	out := make(chan []byte, 64)
	out <- encodeRequests(requests)
	var writing sync.WaitGroup
	writing.Go(func() {
		for b := range out {
			if _, err := conn.Write(b); err != nil {
				for range out { // Reading reports the error.
				}
			}
		}
	})
	answers, err := readAnswers(conn, len(requests), func(b []byte) { out <- b })
	close(out)
	if err != nil {
		_ = conn.Close() // It ends a write that waits.
	}
	writing.Wait()
	return answers, err
}

// readAnswers reads frames until all streams have ended. It answers settings and pings by send.
func readAnswers(conn io.Reader, count int, send func([]byte)) ([][]byte, error) {
	streams := make([]stream, count)
	decoder := hpack.NewDecoder(4096, nil)
	total, left := 0, count
	var block []byte // of headers that are not complete
	endsStream := false
	for left > 0 {
		var header [headerBytes]byte
		if _, err := io.ReadFull(conn, header[:]); err != nil {
			return nil, fmt.Errorf("read: %w", err)
		}
		length := int(header[0])<<16 | int(header[1])<<8 | int(header[2])
		kind, flags, id := header[3], header[4], binary.BigEndian.Uint32(header[5:])&0x7fff_ffff
		if total += length; length > maxFrame || total > maxAnswers {
			return nil, errors.New("the answer is too large")
		}
		payload := make([]byte, length)
		if _, err := io.ReadFull(conn, payload); err != nil {
			return nil, fmt.Errorf("read: %w", err)
		}
		switch kind {
		case frameSettings, framePing:
			if flags&flagAck == 0 {
				if kind == frameSettings {
					payload = nil
				}
				send(appendFrame(nil, kind, flagAck, 0, payload))
			}
			continue
		case frameGoAway:
			// It may still answer: the frame names the last stream that it answers.
			if len(payload) < 4 || binary.BigEndian.Uint32(payload)&0x7fff_ffff < uint32(2*count-1) {
				return nil, errors.New("containerd closes the connection")
			}
			continue
		case frameData, frameHeaders, frameContinuation, frameReset:
		default:
			continue
		}
		index := int(id-1) / 2
		if id%2 == 1 && index < count && streams[index].ended && kind == frameReset {
			continue // grpc-go sends it if it answers before it reads the end of the request.
		}
		if id%2 == 0 || index >= count || streams[index].ended {
			return nil, fmt.Errorf("unexpected frame of stream %d", id)
		}
		s := &streams[index]
		if kind == frameReset {
			return nil, errors.New("containerd has canceled the request")
		}
		payload, err := unpad(payload, kind, flags)
		if err != nil {
			return nil, err
		}
		if kind != frameContinuation { // It belongs to headers, which have the flag.
			endsStream = flags&flagEndStream != 0
		}
		if kind == frameData {
			s.data = append(s.data, payload...)
		} else {
			if block = append(block, payload...); flags&flagEndHeaders == 0 {
				continue
			}
			if err := checkHeaders(decoder, block); err != nil {
				return nil, err
			}
			block = nil
		}
		if endsStream {
			s.ended = true
			left--
		}
	}
	answers := make([][]byte, count)
	for i, s := range streams {
		answers[i] = s.data
	}
	return answers, nil
}

// unpad returns a payload without padding and priority.
func unpad(payload []byte, kind, flags byte) ([]byte, error) {
	if kind == frameContinuation {
		return payload, nil
	}
	padding := 0
	if flags&flagPadded != 0 && len(payload) > 0 {
		padding, payload = int(payload[0]), payload[1:]
	}
	if kind == frameHeaders && flags&flagPriority != 0 {
		const priorityBytes = 5
		payload = payload[min(priorityBytes, len(payload)):]
	}
	if padding > len(payload) {
		return nil, errors.New("malformed HTTP/2 frame")
	}
	return payload[:len(payload)-padding], nil
}

// checkHeaders returns the error that headers or trailers report.
func checkHeaders(decoder *hpack.Decoder, block []byte) error {
	list, err := decoder.DecodeFull(block)
	if err != nil {
		return fmt.Errorf("malformed HTTP/2 headers: %w", err)
	}
	values := map[string]string{}
	for _, field := range list {
		values[field.Name] = field.Value
	}
	switch {
	case values[":status"] != "" && values[":status"] != "200":
		return fmt.Errorf("HTTP status %s", values[":status"])
	case values["grpc-status"] != "" && values["grpc-status"] != "0":
		return fmt.Errorf("gRPC status %s: %s", values["grpc-status"], decodeMessage(values["grpc-message"]))
	}
	return nil
}
