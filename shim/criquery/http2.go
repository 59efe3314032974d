package criquery

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
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
	frameWindowUpdate = 8
)

// Flags of frames.
const (
	flagEndStream  = 0x1 // of data and headers
	flagAck        = 0x1 // of settings and pings
	flagEndHeaders = 0x4 // of headers
)

const settingInitialWindowSize = 4

// request is a call of a gRPC method.
type request struct {
	path    string
	message []byte
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

// readAnswers reads frames until all streams have ended. It answers settings and pings by send. What grpc-go does not
// send is an error: padding, priorities, and headers of several frames, which are only those of very long errors.
func readAnswers(conn io.Reader, count int, send func([]byte)) ([][]byte, error) {
	answers, ended := make([][]byte, count), make([]bool, count)
	decoder := hpack.NewDecoder(4096, nil)
	total := 0
	for slices.Contains(ended, false) {
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
		case frameData, frameHeaders, frameReset:
		default:
			continue
		}
		index := int(id-1) / 2
		if id%2 == 0 || index >= count {
			return nil, fmt.Errorf("unexpected frame of stream %d", id)
		}
		if ended[index] { // grpc-go resets a stream if it answers before it reads the end of the request.
			continue
		}
		switch {
		case kind == frameReset:
			return nil, errors.New("containerd has canceled the request")
		case flags&^(flagEndStream|flagEndHeaders) != 0 || kind == frameHeaders && flags&flagEndHeaders == 0:
			return nil, fmt.Errorf("unexpected flags %#x of a frame", flags)
		case kind == frameData:
			answers[index] = append(answers[index], payload...)
		default:
			if err := checkHeaders(decoder, payload); err != nil {
				return nil, err
			}
		}
		ended[index] = flags&flagEndStream != 0
	}
	return answers, nil
}

// checkHeaders returns the error that headers or trailers report.
func checkHeaders(decoder *hpack.Decoder, block []byte) error {
	list, err := decoder.DecodeFull(block)
	if err != nil {
		return fmt.Errorf("malformed HTTP/2 headers: %w", err)
	}
	values := map[string]string{":status": "200", "grpc-status": "0"}
	for _, field := range list {
		values[field.Name] = field.Value
	}
	message := values["grpc-message"]
	if decoded, err := url.PathUnescape(message); err == nil {
		message = decoded
	}
	switch {
	case values[":status"] != "200":
		return fmt.Errorf("HTTP status %s", values[":status"])
	case values["grpc-status"] != "0":
		return fmt.Errorf("gRPC status %s: %s", values["grpc-status"], message)
	}
	return nil
}
